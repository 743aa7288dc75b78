"""Takes a batch apart into the nodes of a structure and its arrays."""

from __future__ import annotations

import collections
import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from mpwds import tenbin
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
    INT,
    INT_MAX,
    INT_MIN,
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
    TUPLE,
    ClassAsSent,
    Structure,
    fields_of,
    has_own_equality,
    path,
    subscript,
)
from mpwds.pickling import dumps


def flatten(batch: Any, *, allow_pickle: bool = False) -> tuple[Structure, list[tenbin.Array]]:
    """Take a batch apart into its structure and its arrays.

    Containers are dict, list, tuple, namedtuple, dataclass, OrderedDict and defaultdict (of a builtin type),
    in any nesting. Leaves are arrays, tensors, ``Deferred`` arrays, NumPy scalars, None, bool, int, float,
    complex, str, bytes and bytearray. Everything else is pickled with cloudpickle if that is allowed: other
    subclasses of the containers, arrays that tenbin cannot hold, and namedtuples and dataclasses that have
    their own way to be pickled or hold more than their fields.

    Args:
        batch: The batch. It is not changed; arrays are neither copied nor converted.
        allow_pickle: Pickle other objects, and classes that the receiver cannot find by name.

    Returns:
        ``(structure, arrays)`` for ``unflatten``, the arrays depth first. ``requires_grad`` and object
        identity (the same array twice) are lost.

    Raises:
        TypeError: Pickling is not allowed or fails for an object of another class, or for a key whose class
            has its own ``__hash__`` or ``__eq__`` (a dataclass, say). The message tells where in the batch it
            is.
        ValueError: The batch is nested more than 128 deep, or contains itself.

    Example:
        >>> import numpy as np
        >>> flatten({"x": np.zeros(2), "y": [1, 2]})
        ([4, ['x', 'y'], [[0], [7, [1, 2]]]], [array([0., 0.])])
    """
    arrays: list[Any] = []
    try:
        return _to_node(batch, arrays, allow_pickle, 0), arrays
    except _CannotSend as error:
        where = path(batch, error.item, _children)
        raise TypeError(f"{where} is a {type(error.item).__qualname__}, {error.reason}") from error.__cause__


class _CannotSend(Exception):
    """An item cannot be sent; ``flatten`` raises a ``TypeError`` that says where it is."""

    def __init__(self, item: Any, reason: str) -> None:
        self.item = item
        self.reason = reason


_Encoder: TypeAlias = Callable[[Any, "list[Any]", bool, int], Any]


def _to_node(item: Any, arrays: list[Any], allow_pickle: bool, depth: int) -> Any:
    """The node of an item that lies ``depth`` containers deep. Its arrays are appended to ``arrays``."""
    encoder = _ENCODERS.get(type(item))
    if encoder is None:
        encoder = _learned.get(type(item))
        if encoder is None:
            encoder = _learned[type(item)] = _encoder_for(type(item))
    return encoder(item, arrays, allow_pickle, depth)


def _plain(item: Any, arrays: list[Any], allow_pickle: bool, depth: int) -> Any:
    return item


def _int(item: int, arrays: list[Any], allow_pickle: bool, depth: int) -> Any:
    if INT_MIN <= item <= INT_MAX:
        return item
    return [BIG_INT, item.to_bytes(item.bit_length() // 8 + 1, "little", signed=True)]


def _complex(item: complex, arrays: list[Any], allow_pickle: bool, depth: int) -> Any:
    return [COMPLEX, item.real, item.imag]


def _bytearray(item: bytearray, arrays: list[Any], allow_pickle: bool, depth: int) -> Any:
    return [BYTEARRAY, bytes(item)]


def _array(item: Any, arrays: list[Any], allow_pickle: bool, depth: int) -> Any:
    if not tenbin.holds(item):
        return _other(item, arrays, allow_pickle, depth)
    arrays.append(item)
    return [ARRAY]


def _scalar(item: Any, arrays: list[Any], allow_pickle: bool, depth: int) -> Any:
    if not tenbin.holds(item):
        return _other(item, arrays, allow_pickle, depth)
    arrays.append(np.asarray(item))
    return [SCALAR]


def _list(item: list[Any], arrays: list[Any], allow_pickle: bool, depth: int) -> Any:
    if _all_plain(item):
        return [PLAIN_LIST, item]
    return [LIST, _to_nodes(item, arrays, allow_pickle, depth)]


def _tuple(item: tuple[Any, ...], arrays: list[Any], allow_pickle: bool, depth: int) -> Any:
    if _all_plain(item):
        return [PLAIN_TUPLE, list(item)]
    return [TUPLE, _to_nodes(item, arrays, allow_pickle, depth)]


def _dict(item: dict[Any, Any], arrays: list[Any], allow_pickle: bool, depth: int) -> Any:
    return [DICT, *_to_pairs(item, arrays, allow_pickle, depth)]


def _ordered_dict(item: dict[Any, Any], arrays: list[Any], allow_pickle: bool, depth: int) -> Any:
    return [ORDERED_DICT, *_to_pairs(item, arrays, allow_pickle, depth)]


def _default_dict(
    item: collections.defaultdict[Any, Any], arrays: list[Any], allow_pickle: bool, depth: int
) -> Any:
    factory = item.default_factory
    name = getattr(factory, "__name__", None)
    if factory is not None and (type(name) is not str or FACTORIES.get(name) is not factory):
        return _other(item, arrays, allow_pickle, depth)
    return [DEFAULT_DICT, *_to_pairs(item, arrays, allow_pickle, depth), name]


def _other(item: Any, arrays: list[Any], allow_pickle: bool, depth: int) -> Any:
    if not allow_pickle:
        raise _CannotSend(
            item,
            "which can only be sent pickled: pass allow_pickle=True if the receiver may unpickle it, or "
            "convert it to arrays, numbers, text or containers of these",
        )
    try:
        return [PICKLE, dumps(item)]
    except Exception as error:
        raise _CannotSend(item, f"which cannot be pickled: {error}") from error


def _all_plain(items: list[Any] | tuple[Any, ...]) -> bool:
    if not items:
        return True
    if type(items[0]) not in PLAIN_OR_INT:
        return False
    kinds = set(map(type, items))
    return kinds <= PLAIN or (kinds == INT and min(items) >= INT_MIN and max(items) <= INT_MAX)


def _to_nodes(items: Any, arrays: list[Any], allow_pickle: bool, depth: int) -> list[Any]:
    if depth >= MAX_DEPTH:
        raise ValueError(f"the batch is nested more than {MAX_DEPTH} levels deep, or contains itself")
    depth += 1
    return [item if type(item) in PLAIN else _to_node(item, arrays, allow_pickle, depth) for item in items]


def _to_pairs(
    item: dict[Any, Any], arrays: list[Any], allow_pickle: bool, depth: int
) -> tuple[list[Any], list[Any]]:
    if set(map(type, item)) <= PLAIN:
        keys = list(item)
    else:
        keys = _to_nodes(item, arrays, allow_pickle, depth)
        if not allow_pickle:
            for key in item:
                _check_key(key)
    return keys, _to_nodes(item.values(), arrays, allow_pickle, depth)


def _check_key(key: Any) -> None:
    """Refuses a key that the receiver would refuse unless it may unpickle."""
    if fields_of(type(key)) is not None and has_own_equality(type(key)):
        raise _CannotSend(
            key,
            "whose own __hash__ and __eq__ the receiver would have to run: pass allow_pickle=True if it may "
            "run and unpickle what you send, or use keys of text, numbers and tuples",
        )
    if isinstance(key, tuple):
        for part in key:
            _check_key(part)


_ENCODERS: dict[type, _Encoder] = {
    **dict.fromkeys(PLAIN, _plain),
    int: _int,
    complex: _complex,
    bytearray: _bytearray,
    list: _list,
    tuple: _tuple,
    dict: _dict,
    collections.OrderedDict: _ordered_dict,
    collections.defaultdict: _default_dict,
    np.ndarray: _array,
    np.memmap: _array,
}
_learned: weakref.WeakKeyDictionary[type, _Encoder] = weakref.WeakKeyDictionary()


def _encoder_for(kind: type) -> _Encoder:
    """The encoder of a type that is not in ``_ENCODERS``."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is not None and kind in (tensor, getattr(sys.modules.get("torch.nn"), "Parameter", None)):
        return _array
    if issubclass(kind, np.generic):
        return _scalar
    if issubclass(kind, np.ndarray) or (tensor is not None and issubclass(kind, tensor)):
        return _other
    if hasattr(kind, "write_into"):
        return _array
    if fields_of(kind) is None:
        return _other
    return functools.partial(_instance, sent=ClassAsSent(kind))


def _instance(item: Any, arrays: list[Any], allow_pickle: bool, depth: int, *, sent: ClassAsSent) -> Any:
    kind = type(item)
    fields = fields_of(kind) or []
    values = item if issubclass(kind, tuple) else [getattr(item, name, END) for name in fields]
    held = getattr(item, "__dict__", None)
    if len(values) != len(fields) or any(value is END for value in values) or (held and held.keys() - fields):
        return _other(item, arrays, allow_pickle, depth)  # has other attributes, or lacks fields
    pickled = None
    if allow_pickle:
        try:
            pickled = sent.pickled(kind)
        except Exception as error:
            raise _CannotSend(item, f"whose class cannot be pickled: {error}") from error
    elif values is not item and "<locals>" in sent.name:
        raise _CannotSend(
            item,
            "a dataclass that is local to a function, which can only be sent pickled: pass "
            "allow_pickle=True if the receiver may unpickle it, or define it in a module",
        )
    tag = NAMEDTUPLE if values is item else DATACLASS
    return [tag, _to_nodes(values, arrays, allow_pickle, depth), sent.name, fields, pickled]


def _children(item: Any) -> Iterator[tuple[str, Any]]:
    kind = type(item)  # subclasses are leaves: they are sent pickled
    if kind in (dict, collections.OrderedDict, collections.defaultdict):
        yield from ((f"'s key {key!r}", key) for key in item)
        yield from ((subscript(key), value) for key, value in item.items())
    elif kind in (list, tuple):
        yield from ((f"[{index}]", value) for index, value in enumerate(item))
    else:
        yield from ((f".{name}", getattr(item, name, None)) for name in fields_of(kind) or [])
