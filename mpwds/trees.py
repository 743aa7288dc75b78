"""The one walk over nested data: mappings, lists, tuples, namedtuples and dataclasses of anything."""

from __future__ import annotations

import collections
import copy
import dataclasses
import inspect
import types
import weakref
from collections.abc import Callable, Collection, Iterable, MutableMapping
from typing import Any

_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict)


def parts(item: Any) -> Collection[Any] | None:
    """The values that a container holds, a dataclass those of its fields that are set; ``None`` for a leaf.

    Subclasses of containers are containers. So are other mappings, such as transformers' ``BatchEncoding``.

    Example:
        >>> list(parts({"a": 1, "b": [2, 3]})), parts("text")
        ([1, [2, 3]], None)
    """
    if isinstance(item, MutableMapping):
        return list(item.values())
    if isinstance(item, (list, tuple)):
        return item
    if hasattr(type(item), "__dataclass_fields__"):
        return [getattr(item, name) for name in _set_fields(item)]
    return None


def with_parts(item: Any, values: list[Any]) -> Any:
    """A container like ``item``, of its class and with its keys, that holds other values.

    The same object, if the values are those that it holds already.
    """
    if all(value is part for value, part in zip(values, parts(item) or (), strict=True)):
        return item
    kind = type(item)
    if kind is dict:
        return dict(zip(item, values, strict=True))
    if kind is list:
        return values
    if isinstance(item, tuple):
        return kind(*values) if hasattr(item, "_fields") else kind(values)
    like: Any = copy.copy(item)
    if isinstance(item, MutableMapping):
        for key, value in zip(item, values, strict=True):  # ``update`` of a Counter would count
            like[key] = value
    elif isinstance(item, list):
        like[:] = values
    else:
        _set(like, _set_fields(item), values)
    return like


def tree_map(item: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """``item`` with ``function(x)`` in the place of each ``x`` of class ``kind`` in it.

    Containers that hold such an object are copied. All others stay as they are, and so do keys.

    Example:
        >>> tree_map({"a": [1.5, "b"], "c": (2.5, None)}, float, int)
        {'a': [1, 'b'], 'c': (2, None)}
    """
    if isinstance(item, kind):
        return function(item)
    values = parts(item)
    if values is None:
        return item
    return with_parts(item, [tree_map(value, kind, function) for value in values])


def children(item: Any) -> dict[Any, Any] | None:
    """The parts of a container by key, index or field name; ``None`` for a leaf.

    Subclasses of containers, which may hold more than their parts, are leaves: see :func:`fields_of`.
    """
    kind = type(item)
    if kind in _MAPPINGS:
        return dict(item)
    if kind in (list, tuple):
        return dict(enumerate(item))
    names = fields_of(kind)
    return None if names is None else {name: getattr(item, name, None) for name in names}


def instance(kind: type, names: Iterable[str], values: Iterable[Any]) -> Any:
    """An instance of a namedtuple or dataclass with these fields, made without running code of the class."""
    if issubclass(kind, tuple):
        return tuple.__new__(kind, values)
    made = object.__new__(kind)
    _set(made, names, values)
    return made


def fields_of(kind: type) -> list[str] | None:
    """The fields of a namedtuple or dataclass; ``None`` if its instances are more than their fields."""
    if kind not in _known_fields:
        _known_fields[kind] = _find_fields(kind)
    return _known_fields[kind]


_known_fields: weakref.WeakKeyDictionary[type, list[str] | None] = weakref.WeakKeyDictionary()


def _find_fields(kind: type) -> list[str] | None:
    for name in ("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__", "__del__"):
        method = getattr(kind, name, None)
        by_dataclass = getattr(method, "__module__", None) == "dataclasses"  # frozen ones with slots
        if method is not getattr(object, name, None) and not by_dataclass:
            return None  # it has its own way to be copied or dropped, like enums and exceptions
    if issubclass(kind, tuple):
        names = getattr(kind, "_fields", None)
        return list(names) if type(names) is tuple and set(map(type, names)) <= {str} else None
    if not dataclasses.is_dataclass(kind) or "__dataclass_fields__" not in kind.__dict__:
        return None  # a plain subclass of a dataclass may have other attributes
    try:
        object.__new__(kind)
    except TypeError:  # abstract, or derived from a builtin container
        return None
    names = [field.name for field in dataclasses.fields(kind)]
    return None if any(_is_computed(kind, name) for name in names) else names


def _is_computed(kind: type, name: str) -> bool:
    """True if setting the attribute runs code, as a property's does and a slot's does not."""
    attribute = inspect.getattr_static(kind, name, None)
    return hasattr(type(attribute), "__set__") and type(attribute) is not types.MemberDescriptorType


def _set_fields(item: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(item) if hasattr(item, field.name)]


def _set(item: Any, names: Iterable[str], values: Iterable[Any]) -> None:
    for name, value in zip(names, values, strict=True):
        object.__setattr__(item, name, value)  # frozen dataclasses too
