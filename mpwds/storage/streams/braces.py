"""Expand braces in patterns, ``x-{000..131}.tar``, after counting what comes of them."""

from __future__ import annotations

import re

from braceexpand import braceexpand

MAX_NAMES = 1_000_000
"""The most names that a pattern may expand to: about a petabyte of shards."""

_MAX_CHARACTERS = 1_000_000_000  # of all names: padding and long patterns multiply, too

_TOKEN = re.compile(
    r"\\."
    r"|\{(?P<first>-?\d+)\.\.(?P<last>-?\d+)(\.\.(?P<step>-?\d+))?\}"
    r"|\{(?P<from>[A-Za-z])\.\.(?P<to>[A-Za-z])(\.\.(?P<stride>-?\d+))?\}"
    r"|[{},]",
    re.DOTALL,
)


def expand_braces(*patterns: str) -> list[str]:
    """The names that patterns stand for, in order.

    Args:
        patterns: ``{000..131}`` and ``{a,b}`` in them become every string they count out.

    Raises:
        ValueError: The braces do not match, or there would be more than a million names, or names of more
            than a gigabyte.

    Example:
        >>> expand_braces("x-{0..2}.{tar,txt}")
        ['x-0.tar', 'x-0.txt', 'x-1.tar', 'x-1.txt', 'x-2.tar', 'x-2.txt']
    """
    names = sum(map(_count, patterns))
    if names > MAX_NAMES:
        largest = max(patterns, key=_count)
        raise ValueError(
            f"the braces in {largest!r} stand for {_count(largest)} names; {MAX_NAMES} are allowed. If you "
            "mean so many, pass them as a list"
        )
    characters = sum(_count(pattern) * len(pattern) for pattern in patterns)
    if characters > _MAX_CHARACTERS:
        raise ValueError(
            f"the braces in a pattern of {max(map(len, patterns))} characters stand for {names} names of up "
            f"to that length: {characters} characters in all, and {_MAX_CHARACTERS} are allowed"
        )
    return [name for pattern in patterns for name in _expand(pattern)]


def _expand(pattern: str) -> list[str]:
    try:
        return list(braceexpand(pattern))
    except ValueError:
        raise ValueError(f"the braces in {pattern!r} do not match: write train-{{000..011}}.tar") from None


def _count(pattern: str) -> int:
    """The number of names in a pattern: exact, unless letters are counted through or braces do not match."""
    alternatives, names = 0, 1  # of the braces that are open: those before the last comma; those since
    outer: list[tuple[int, int]] = []
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if text == "{":
            outer.append((alternatives, names))
            alternatives, names = 0, 1
        elif text == "," and outer:
            alternatives, names = alternatives + names, 1
        elif text == "}" and outer:
            inside = alternatives + names
            alternatives, names = outer.pop()
            names *= inside
        elif token["first"]:
            names *= _steps(int(token["first"]), int(token["last"]), token["step"])
        elif token["from"]:
            names *= _steps(ord(token["from"]), ord(token["to"]), token["stride"])
    return max(names, *(before for _, before in outer), 1)


def _steps(first: int, last: int, step: str | None) -> int:
    return abs(last - first) // max(1, abs(int(step or 1))) + 1
