"""Replace the objects of one class in any nesting of containers."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable
from typing import Any


def replaced(item: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """``item`` with ``function(x)`` in the place of each ``x`` of class ``kind`` in it.

    Containers are dict, list, tuple, namedtuple, dataclass and subclasses of these. They are copied; the
    other objects in them, keys included, stay as they are.

    Example:
        >>> replaced({"a": [1.5, "b"], "c": (2.5, None)}, float, int)
        {'a': [1, 'b'], 'c': (2, None)}
    """
    if isinstance(item, kind):
        return function(item)
    if isinstance(item, dict):
        changed = {key: replaced(value, kind, function) for key, value in item.items()}
        if type(item) is dict:
            return changed
        like: Any = copy.copy(item)
        like.update(changed)
        return like
    if isinstance(item, (list, tuple)):
        values = [replaced(value, kind, function) for value in item]
        if type(item) is list:
            return values
        if isinstance(item, tuple):
            return type(item)(*values) if hasattr(item, "_fields") else type(item)(values)
        like = copy.copy(item)
        like[:] = values
        return like
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        like = copy.copy(item)
        for field in dataclasses.fields(item):
            if hasattr(item, field.name):
                # Frozen dataclasses too.
                object.__setattr__(like, field.name, replaced(getattr(item, field.name), kind, function))
        return like
    return item


def pinned(element: Any) -> Any:
    """``element`` with its CPU tensors copied into pinned memory; those that are pinned already stay."""
    torch = sys.modules.get("torch")
    if torch is None:
        return element
    return replaced(
        element, torch.Tensor, lambda each: each.pin_memory() if each.device.type == "cpu" else each
    )
