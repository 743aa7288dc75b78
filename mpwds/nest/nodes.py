"""Defines the nodes on the wire, and finds keys of dicts that would run code."""

from __future__ import annotations

from typing import Any, TypeAlias

from mpwds.trees import fields_of

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
