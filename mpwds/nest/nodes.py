"""What encoding and decoding share: the nodes on the wire, the classes of instances, places for messages."""

from __future__ import annotations

import collections
import functools
import json
import pickle
import weakref
from collections.abc import Iterator
from typing import Any, TypeAlias

from mpwds.errors import EnvelopeError
from mpwds.pickling import dumps, find_class
from mpwds.trees import children, fields_of

Structure: TypeAlias = "bool | int | float | str | bytes | list[Any] | None"

VERSION = 1
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
OF_ARRAYS = (ARRAY, SCALAR)

PLAIN = {str, bytes, float, bool, type(None)}  # with int, which has a range in msgpack
PLAIN_OR_INT = PLAIN | {int}
STR = {str}
FACTORIES = {kind.__name__: kind for kind in (list, dict, set, tuple, str, bytes, int, float, complex, bool)}

END: Any = object()  # stands for a missing value: the iterator has ended, or the field was never set


def part_with_own_equality(key: Any) -> Any:
    """The part of a dict's key whose class runs its own ``__hash__`` or ``__eq__``; ``None`` if none does."""
    kind = type(key)
    base: type = tuple if issubclass(kind, tuple) else object
    own = (name for name in ("__hash__", "__eq__") if getattr(kind, name) is not getattr(base, name))
    if fields_of(kind) is not None and any(own):
        return key
    parts = tuple.__iter__(key) if base is tuple else ()
    return next((found for part in parts if (found := part_with_own_equality(part)) is not None), None)


_pickled_classes: weakref.WeakKeyDictionary[type, bytes] = weakref.WeakKeyDictionary()


def pickled_class(kind: type, name: str) -> bytes | None:
    """The pickle of a class that the receiver cannot find by name; ``None`` for others."""
    if kind.__module__ != "__main__" and find_class(name) is kind:
        return None
    if kind not in _pickled_classes:
        _pickled_classes[kind] = dumps(kind)
    return _pickled_classes[kind]


@functools.lru_cache(maxsize=256)
def unpickle_class(data: bytes) -> type:
    """The class that ``pickled_class`` pickled; the same object for the same bytes."""
    found = unpickle(data)
    if not isinstance(found, type):
        raise malformed("its pickled class is not a class")
    return found


def unpickle(data: bytes) -> Any:
    try:
        return pickle.loads(data)
    except Exception as error:
        raise EnvelopeError(f"the structure holds a pickle that cannot be opened: {error!r}") from error


@functools.lru_cache(maxsize=256)
def stand_in(name: str, fields: tuple[str, ...]) -> type:
    """A namedtuple type that stands in for one that this process does not have."""
    module, _, qualname = name.partition(":")
    try:
        # rename: namedtuples that were made with it have fields that would be refused.
        kind = collections.namedtuple(qualname.rpartition(".")[2], fields, rename=True, module=module)  # type: ignore[misc]  # fields are known at run time only
    except (ValueError, SyntaxError, TypeError) as error:
        raise malformed(f"bad namedtuple ({error})") from error
    if kind._fields != fields:
        raise malformed(f"a namedtuple cannot have the fields {fields}")
    return kind


def malformed(what: str) -> EnvelopeError:
    return EnvelopeError(f"the structure is malformed: {what}")


def path(batch: Any, target: Any) -> str:
    """The first way from a batch to an item in it, such as ``batch["meta"][1]``."""
    return "batch" + (_way(batch, target, 0, {}) or "")


def _way(here: Any, target: Any, depth: int, visited: dict[int, Any]) -> str | None:
    if here is target:
        return ""
    if depth <= MAX_DEPTH and type(here) not in PLAIN_OR_INT and id(here) not in visited:
        visited[id(here)] = here  # keeps it alive, so that no other object gets its id
        for step, child in _steps(here):
            rest = _way(child, target, depth + 1, visited)
            if rest is not None:
                return step + rest
    return None


def _steps(item: Any) -> Iterator[tuple[str, Any]]:
    """The steps from an item, ``[0]`` or ``.name``, and where they lead."""
    held = children(item) or {}
    if isinstance(item, dict):
        yield from ((f"'s key {key!r}", key) for key in held)
    is_instance = type(item) not in (list, tuple) and not isinstance(item, dict)
    for key, child in held.items():
        text = json.dumps(key, ensure_ascii=False) if type(key) is str else repr(key)
        yield f".{key}" if is_instance else f"[{text}]", child
