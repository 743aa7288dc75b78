"""Puts a batch together again from the nodes of its structure. Trusts none of them."""

from __future__ import annotations

import collections
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from mpwds.errors import EnvelopeError
from mpwds.nest.nodes import (
    ARRAY,
    BIG_INT,
    BYTEARRAY,
    COMPLEX,
    DATACLASS,
    DEFAULT_DICT,
    DICT,
    END,
    FACTORIES,
    LIST,
    MAX_DEPTH,
    NAMEDTUPLE,
    ORDERED_DICT,
    PICKLE,
    PLAIN,
    PLAIN_LIST,
    PLAIN_OR_INT,
    PLAIN_TUPLE,
    SCALAR,
    STR,
    TUPLE,
    Structure,
    fields_of,
    has_own_equality,
    path,
    stand_in,
    subscript,
    unpicklable,
    unpickle_class,
)
from mpwds.pickling import find_class


def unflatten(structure: Structure, arrays: Sequence[Any], *, allow_pickle: bool = False) -> Any:
    """Put a batch together again from its structure and its arrays.

    Classes are looked up in modules that are already imported, and instances are made without running code of
    the class. A namedtuple of an unknown class comes back as one with the same name and fields.

    Args:
        structure: What ``flatten`` returned, possibly by way of an envelope.
        arrays: The arrays that ``flatten`` returned, or decoded copies, in the same order. A scalar's array
            comes back as a NumPy scalar, or a 0-d tensor.
        allow_pickle: Unpickle, and accept keys whose classes have their own ``__hash__`` or ``__eq__``. That
            runs any code the sender wants: only for senders you trust.

    Raises:
        EnvelopeError: The structure is malformed or does not fit the arrays.
        TypeError: It holds a pickle or such a key and that is not allowed, or a dataclass that is not
            imported.

    Example:
        >>> import numpy as np
        >>> from mpwds.nest import flatten
        >>> unflatten(*flatten({"x": np.zeros(2), "y": (1, None)}))
        {'x': array([0., 0.]), 'y': (1, None)}
    """
    remaining = iter(arrays)
    try:
        batch = _from_node(structure, remaining, allow_pickle, 0)
    except _CannotReceive as error:
        raise TypeError(f"{path(structure, error.node, _children)} {error.reason}") from error.__cause__
    if next(remaining, END) is not END:
        raise EnvelopeError(f"the structure has fewer arrays than the {len(arrays)} that came with it")
    return batch


class _CannotReceive(Exception):
    """A node must not be decoded; ``unflatten`` raises a ``TypeError`` that says where it is."""

    def __init__(self, node: Any, reason: str) -> None:
        self.node = node
        self.reason = reason


_Decoder: TypeAlias = Callable[[Any, "Iterator[Any]", bool, int], Any]


def _from_node(node: Any, arrays: Iterator[Any], allow_pickle: bool, depth: int) -> Any:
    """The item of a node that lies ``depth`` containers deep. Its arrays are taken from ``arrays``."""
    kind = type(node)
    if kind is list:
        if node and type(node[0]) is int:
            decoder, length = _DECODERS.get(node[0], _NO_DECODER)
            if len(node) == length:
                return decoder(node, arrays, allow_pickle, depth)
        raise EnvelopeError("the structure is malformed: it has a node that mpwds does not know")
    if kind in PLAIN_OR_INT:
        return node
    raise EnvelopeError(f"the structure is malformed: it has a {kind.__qualname__}")


def _read_array(node: Any, arrays: Iterator[Any], allow_pickle: bool, depth: int) -> Any:
    array = next(arrays, END)
    if array is END:
        raise EnvelopeError("the structure has more arrays than came with it")
    return array


def _read_scalar(node: Any, arrays: Iterator[Any], allow_pickle: bool, depth: int) -> Any:
    array = _read_array(node, arrays, allow_pickle, depth)
    if len(array.shape):
        raise EnvelopeError(f"the structure has a scalar for an array of shape {tuple(array.shape)}")
    return array[()]


def _read_list(node: Any, arrays: Iterator[Any], allow_pickle: bool, depth: int) -> Any:
    return _from_nodes(node[1], arrays, allow_pickle, depth)


def _read_tuple(node: Any, arrays: Iterator[Any], allow_pickle: bool, depth: int) -> Any:
    return tuple(_from_nodes(node[1], arrays, allow_pickle, depth))


def _read_dict(node: Any, arrays: Iterator[Any], allow_pickle: bool, depth: int) -> Any:
    keys = _from_nodes(node[1], arrays, allow_pickle, depth)
    values = _from_nodes(node[2], arrays, allow_pickle, depth)
    if not allow_pickle and list in map(type, node[1]):
        for key_node, key in zip(node[1], keys, strict=True):
            _check_key(key_node, key)
    try:
        result = dict(zip(keys, values, strict=True))
    except (TypeError, ValueError) as error:
        raise EnvelopeError(f"the structure is malformed: it has a dict with a bad key ({error})") from error
    if len(result) != len(keys):
        raise EnvelopeError("the structure is malformed: it has a dict with the same key twice")
    return result


def _check_key(node: Any, key: Any) -> None:
    """Refuse a key if a dict would run code of its class, which the sender chose."""
    if type(node) is not list or node[0] not in (TUPLE, NAMEDTUPLE, DATACLASS):
        return
    if node[0] != TUPLE and has_own_equality(type(key)):
        raise _CannotReceive(
            node,
            f"is a {type(key).__qualname__} in a dict's key, whose own __hash__ and __eq__ would run: "
            "pass allow_pickle=True to let them, if you trust the sender",
        )
    if node[0] != DATACLASS:
        for part_node, part in zip(node[1], tuple.__iter__(key), strict=True):
            _check_key(part_node, part)


def _read_ordered_dict(node: Any, arrays: Iterator[Any], allow_pickle: bool, depth: int) -> Any:
    return collections.OrderedDict(_read_dict(node, arrays, allow_pickle, depth))


def _read_default_dict(node: Any, arrays: Iterator[Any], allow_pickle: bool, depth: int) -> Any:
    name = node[3]
    factory = FACTORIES.get(name) if type(name) is str else None
    if name is not None and factory is None:
        raise EnvelopeError("the structure is malformed: it has a defaultdict of an unknown type")
    return collections.defaultdict(factory, _read_dict(node, arrays, allow_pickle, depth))


def _read_plain_list(node: Any, arrays: Iterator[Any], allow_pickle: bool, depth: int) -> Any:
    values = node[1]
    if type(values) is not list or not set(map(type, values)) <= PLAIN_OR_INT:
        raise EnvelopeError("the structure is malformed: it has a plain list of other things")
    return values.copy()


def _read_plain_tuple(node: Any, arrays: Iterator[Any], allow_pickle: bool, depth: int) -> Any:
    return tuple(_read_plain_list(node, arrays, allow_pickle, depth))


def _read_big_int(node: Any, arrays: Iterator[Any], allow_pickle: bool, depth: int) -> Any:
    return int.from_bytes(_bytes_of(node), "little", signed=True)


def _read_complex(node: Any, arrays: Iterator[Any], allow_pickle: bool, depth: int) -> Any:
    if type(node[1]) is not float or type(node[2]) is not float:
        raise EnvelopeError("the structure is malformed: it has a complex number of other things")
    return complex(node[1], node[2])


def _read_bytearray(node: Any, arrays: Iterator[Any], allow_pickle: bool, depth: int) -> Any:
    return bytearray(_bytes_of(node))


def _read_pickle(node: Any, arrays: Iterator[Any], allow_pickle: bool, depth: int) -> Any:
    data = _bytes_of(node)
    if not allow_pickle:
        raise _CannotReceive(node, _NO_UNPICKLING)
    try:
        return pickle.loads(data)
    except Exception as error:
        raise unpicklable(error) from error


def _read_namedtuple(node: Any, arrays: Iterator[Any], allow_pickle: bool, depth: int) -> Any:
    fields, kind = _class_of(node, allow_pickle)
    values = _from_nodes(node[1], arrays, allow_pickle, depth)
    _check_count(values, fields)
    if kind is None or not issubclass(kind, tuple):
        kind = stand_in(node[2], tuple(fields))
    return tuple.__new__(kind, values)


def _read_dataclass(node: Any, arrays: Iterator[Any], allow_pickle: bool, depth: int) -> Any:
    fields, kind = _class_of(node, allow_pickle)
    if kind is None or issubclass(kind, tuple):
        module, _, qualname = node[2].partition(":")
        raise _CannotReceive(
            node,
            f"is a {qualname} of module {module}, and no dataclass of that name with the fields "
            f"{fields} is imported: import it before receiving",
        )
    values = _from_nodes(node[1], arrays, allow_pickle, depth)
    _check_count(values, fields)
    instance = object.__new__(kind)
    for name, value in zip(fields, values, strict=True):
        object.__setattr__(instance, name, value)
    return instance


_NO_DECODER: tuple[_Decoder, int] = (_read_array, -1)
_DECODERS: dict[int, tuple[_Decoder, int]] = {  # with the node's length
    ARRAY: (_read_array, 1),
    SCALAR: (_read_scalar, 1),
    LIST: (_read_list, 2),
    TUPLE: (_read_tuple, 2),
    DICT: (_read_dict, 3),
    ORDERED_DICT: (_read_ordered_dict, 3),
    DEFAULT_DICT: (_read_default_dict, 4),
    PLAIN_LIST: (_read_plain_list, 2),
    PLAIN_TUPLE: (_read_plain_tuple, 2),
    NAMEDTUPLE: (_read_namedtuple, 5),
    DATACLASS: (_read_dataclass, 5),
    BIG_INT: (_read_big_int, 2),
    COMPLEX: (_read_complex, 3),
    BYTEARRAY: (_read_bytearray, 2),
    PICKLE: (_read_pickle, 2),
}
_NO_UNPICKLING = "is pickled: pass allow_pickle=True to unpickle it, if you trust the sender"


def _from_nodes(nodes: Any, arrays: Iterator[Any], allow_pickle: bool, depth: int) -> list[Any]:
    if type(nodes) is not list:
        raise EnvelopeError("the structure is malformed: it has a container without a list")
    if depth >= MAX_DEPTH:
        raise EnvelopeError(f"the structure is malformed: it is nested more than {MAX_DEPTH} levels deep")
    depth += 1
    return [node if type(node) in PLAIN else _from_node(node, arrays, allow_pickle, depth) for node in nodes]


def _bytes_of(node: Any) -> bytes:
    if type(node[1]) is not bytes:
        raise EnvelopeError("the structure is malformed: it has a node without its bytes")
    return node[1]


def _check_count(values: list[Any], fields: list[str]) -> None:
    if len(values) != len(fields):
        raise EnvelopeError(f"the structure is malformed: it has {len(values)} values for fields {fields}")


def _class_of(node: Any, allow_pickle: bool) -> tuple[list[str], type | None]:
    """A node's field names and its class, ``None`` if that is not found."""
    _, _, name, fields, pickled = node
    if type(name) is not str or type(fields) is not list or not set(map(type, fields)) <= STR:
        raise EnvelopeError("the structure is malformed: it has an instance without a class")
    kind = find_class(name)
    if kind is not None and fields_of(kind) == fields:
        found: type | None = kind
    else:
        found = None
    if pickled is None:
        return fields, found
    if type(pickled) is not bytes:
        raise EnvelopeError("the structure is malformed: it has a class without its bytes")
    if not allow_pickle:
        raise _CannotReceive(node, _NO_UNPICKLING)
    if found is None:
        found = unpickle_class(pickled)
        if fields_of(found) != fields:
            raise EnvelopeError(f"the structure is malformed: the class {name} has not the fields {fields}")
    return fields, found


def _children(node: Any) -> Iterator[tuple[str, Any]]:
    if type(node) is not list or len(node) < 2 or type(node[1]) is not list:
        return
    tag, items = node[0], node[1]
    if tag in (DICT, ORDERED_DICT, DEFAULT_DICT):
        yield from ((f"'s key {index}", key) for index, key in enumerate(items))
        yield from ((subscript(key), value) for key, value in zip(items, node[2], strict=False))
    elif tag in (NAMEDTUPLE, DATACLASS):
        yield from ((f".{name}", value) for name, value in zip(node[3], items, strict=False))
    elif tag in (LIST, TUPLE):
        yield from ((f"[{index}]", value) for index, value in enumerate(items))
