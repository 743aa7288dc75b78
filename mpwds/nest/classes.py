"""Namedtuple and dataclass types of a batch: their fields, and how the receiver finds them."""

from __future__ import annotations

import collections
import dataclasses
import functools
import inspect
import pickle
import types
import weakref

from mpwds.errors import EnvelopeError
from mpwds.nest.nodes import STR
from mpwds.pickling import dumps, find_class


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
