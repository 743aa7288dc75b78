"""What encoding and decoding share: the nodes on the wire, the classes of instances, places for messages."""

from __future__ import annotations

import collections
import dataclasses
import functools
import inspect
import json
import pickle
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from mpwds.errors import EnvelopeError
from mpwds.pickling import dumps, find_class

Structure: TypeAlias = "bool | int | float | str | bytes | list[Any] | None"

MAX_DEPTH = 128  # msgpack's packer takes 511 levels, of which a container here has two

# Tags of nodes. They go over the wire: you may add new ones, but must not change the meaning of one.
ARRAY = 0  # [tag]
SCALAR = 1  # [tag]: a NumPy scalar, sent as a 0-d array
LIST = 2  # [tag, nodes]
TUPLE = 3  # [tag, nodes]
DICT = 4  # [tag, key nodes, value nodes]
ORDERED_DICT = 5  # [tag, key nodes, value nodes]
DEFAULT_DICT = 6  # [tag, key nodes, value nodes, name of the factory]
PLAIN_LIST = 7  # [tag, values]
PLAIN_TUPLE = 8  # [tag, values]
NAMEDTUPLE = 9  # [tag, nodes, "module:qualname", field names, None or the pickled class]
DATACLASS = 10  # [tag, nodes, "module:qualname", field names, None or the pickled class]
BIG_INT = 11  # [tag, signed little-endian bytes]
COMPLEX = 12  # [tag, real, imaginary]
BYTEARRAY = 13  # [tag, bytes]
PICKLE = 14  # [tag, bytes]

_NoneType = type(None)
PLAIN = {str, bytes, float, bool, _NoneType}  # with int, which has a range in msgpack
PLAIN_OR_INT = PLAIN | {int}
STR = {str}
INT = {int}
INT_MIN, INT_MAX = -(1 << 63), (1 << 64) - 1
FACTORIES = {kind.__name__: kind for kind in (list, dict, set, tuple, str, bytes, int, float, complex, bool)}

END = object()  # stands for a missing value: the iterator has ended, or the field was never set


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
        return list(names) if type(names) is tuple and set(map(type, names)) <= STR else None
    if not dataclasses.is_dataclass(kind) or "__dataclass_fields__" not in kind.__dict__:
        return None  # a plain subclass of a dataclass may have other attributes
    try:
        object.__new__(kind)
    except TypeError:  # abstract, or derived from a builtin container
        return None
    names = [field.name for field in dataclasses.fields(kind)]
    return None if any(_is_computed(kind, name) for name in names) else names


def has_own_equality(kind: type) -> bool:
    """Whether a dict with keys of this class runs the class's code."""
    base = tuple if issubclass(kind, tuple) else object
    return any(getattr(kind, name) is not getattr(base, name) for name in ("__hash__", "__eq__"))


def _is_computed(kind: type, name: str) -> bool:
    """Whether setting the attribute runs code, as a property's does and a slot's does not."""
    attribute = inspect.getattr_static(kind, name, None)
    return hasattr(type(attribute), "__set__") and type(attribute) is not types.MemberDescriptorType


class ClassAsSent:
    """A class as it is sent: by name, or pickled if the receiver cannot find it by name."""

    def __init__(self, kind: type) -> None:
        self.name = f"{kind.__module__}:{kind.__qualname__}"
        self.found_by_name = kind.__module__ != "__main__" and find_class(self.name) is kind
        self._pickled: bytes | None = None

    def pickled(self, kind: type) -> bytes | None:
        if self._pickled is None and not self.found_by_name:
            self._pickled = dumps(kind)
        return self._pickled


@functools.lru_cache(maxsize=256)
def unpickle_class(data: bytes) -> type:
    """The class that ``ClassAsSent`` pickled; the same object for the same bytes."""
    try:
        found = pickle.loads(data)
    except Exception as error:
        raise unpicklable(error) from error
    if not isinstance(found, type):
        raise EnvelopeError("the structure is malformed: its pickled class is not a class")
    return found


def unpicklable(error: Exception) -> EnvelopeError:
    """The error for a pickle that raises ``error``."""
    return EnvelopeError(f"the structure holds a pickle that cannot be opened: {error!r}")


@functools.lru_cache(maxsize=256)
def stand_in(name: str, fields: tuple[str, ...]) -> type:
    """A namedtuple type that stands in for one that this process does not have."""
    module, _, qualname = name.partition(":")
    try:
        # rename: namedtuples that were made with it have fields that would be refused.
        kind = collections.namedtuple(qualname.rpartition(".")[2], fields, rename=True, module=module)  # type: ignore[misc]  # fields are known at run time only
    except (ValueError, SyntaxError, TypeError) as error:
        raise EnvelopeError(f"the structure is malformed: bad namedtuple ({error})") from error
    if kind._fields != fields:
        raise EnvelopeError(f"the structure is malformed: a namedtuple cannot have the fields {fields}")
    return kind


Children: TypeAlias = Callable[[Any], "Iterator[tuple[str, Any]]"]
"""Yields the steps from an item, ``[0]`` or ``.name``, and where they lead."""


def path(root: Any, target: Any, children: Children) -> str:
    """The first way from the batch ``root`` to ``target``, such as ``batch["meta"][1]``."""
    return "batch" + (_way(root, target, children, 0, {}) or "")


def subscript(key: Any) -> str:
    """The step to the value of a dict's key: ``["png"]``."""
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
