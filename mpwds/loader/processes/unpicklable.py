"""Which part of an object cannot be pickled, and where it is."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

from mpwds.loader.processes.dataset_pickler import DatasetPickler

_DEEPEST = 50
_MOST_TRIALS = 20_000


def find(setup: Any) -> str:
    """The path to the innermost part of an object that cannot be pickled, and what it is.

    Args:
        setup: The object; the path begins at its attributes.

    Example:
        >>> class Setup:
        ...     def __init__(self, dataset):
        ...         self.dataset = dataset
        >>> find(Setup([1, {"lines": (line for line in "ab")}]))
        "dataset[1]['lines'] is a generator"
    """
    path, culprit = _follow(setup)
    what = getattr(culprit, "__qualname__", None) if isinstance(culprit, (FunctionType, MethodType)) else None
    return f"{path.lstrip('.') or 'it'} is a {type(culprit).__qualname__}{f' ({what})' if what else ''}"


def _follow(item: Any) -> tuple[str, Any]:
    path = ""
    visited = {id(item)}
    trials = 0
    for _ in range(_DEEPEST):
        for step, part in _parts(item):
            trials += 1
            if id(part) not in visited and not _can_be_pickled(part):
                visited.add(id(part))
                path, item = path + step, part
                break
            if trials > _MOST_TRIALS:
                return path, item
        else:
            break
    return path, item


class _Nowhere:
    def write(self, data: Any) -> int:
        return len(data)


def _can_be_pickled(item: Any) -> bool:
    try:
        DatasetPickler(_Nowhere(), lambda buffer: None).dump(item)
    except Exception:
        return False
    return True


def _parts(item: Any) -> Iterator[tuple[str, Any]]:
    """What an object's pickle is made of, as far as one can tell, with the step that leads there."""
    if isinstance(item, dict):
        yield from ((f"[{key!r}]", value) for key, value in list(item.items()))
    elif isinstance(item, (list, tuple, set, frozenset)):
        yield from ((f"[{index}]", value) for index, value in enumerate(list(item)))
    elif isinstance(item, functools.partial):
        yield from ((".func", item.func), (".args", item.args), (".keywords", item.keywords))
    elif isinstance(item, MethodType):
        yield ".__self__", item.__self__
    elif isinstance(item, FunctionType):
        yield from _parts_of_function(item)
    attributes = getattr(item, "__dict__", None)
    if isinstance(attributes, dict) and not isinstance(item, type):
        yield from ((f".{name}", value) for name, value in list(attributes.items()))
    for kind in type(item).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(item, name):
                yield f".{name}", getattr(item, name)


def _parts_of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=False):
        try:
            yield f"'s variable {name}", cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in function.__code__.co_names:
        if name in function.__globals__ and not inspect.ismodule(function.__globals__[name]):
            yield f"'s global {name}", function.__globals__[name]
