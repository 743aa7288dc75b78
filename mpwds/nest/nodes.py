"""The nodes of a structure, as they go over the wire."""

from __future__ import annotations

from typing import Any, TypeAlias

Structure: TypeAlias = "bool | int | float | str | bytes | list[Any] | None"

MAX_DEPTH = 128  # msgpack's packer takes 511 levels, of which a container here has two

# Tags of nodes. They go over the wire: new ones may be added, none may change its meaning.
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
