"""Where in a batch an item lies, for error messages: ``batch["meta"][1]``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from mpwds.nest.nodes import MAX_DEPTH, PLAIN_OR_INT

Children: TypeAlias = Callable[[Any], "Iterator[tuple[str, Any]]"]
"""Yields the steps from an item, ``[0]`` or ``.name``, and where they lead."""


def path(root: Any, target: Any, children: Children) -> str:
    """The first way from the batch ``root`` to ``target`` that encoding or decoding takes.

    Example:
        >>> path([1, ["x"]], "x", lambda item: ((f"[{n}]", child) for n, child in enumerate(item)))
        'batch[1][0]'
    """
    return "batch" + (_way(root, target, children, 0, {}) or "")


def subscript(key: Any) -> str:
    """The step to the value of a dict's key.

    Example:
        >>> subscript("png"), subscript(3)
        ('["png"]', '[3]')
    """
    return f"[{json.dumps(key, ensure_ascii=False) if type(key) is str else repr(key)}]"


def _way(here: Any, target: Any, children: Children, depth: int, visited: dict[int, Any]) -> str | None:
    if here is target:
        return ""
    if depth <= MAX_DEPTH and type(here) not in PLAIN_OR_INT and id(here) not in visited:
        visited[id(here)] = here  # keeps it alive, so that no other object gets its id
        for step, child in children(here):
            rest = _way(child, target, children, depth + 1, visited)
            if rest is not None:
                return step + rest
    return None
