"""The sender's side: a batch to structure and arrays, fields to an envelope."""

from __future__ import annotations

import collections
import json
import weakref
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np

from mpwds import tenbin
from mpwds.imports import tensor_class
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
    OF_ARRAYS,
    ORDERED_DICT,
    PICKLE,
    PLAIN,
    PLAIN_LIST,
    PLAIN_OR_INT,
    PLAIN_TUPLE,
    SCALAR,
    TUPLE,
    VERSION,
    Structure,
    part_with_own_equality,
)
from mpwds.pickling import dumps, find_class
from mpwds.trees import children, fields_of

_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1  # of msgpack
_INT = {int}


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
        where = _path(batch, error.item)
        raise TypeError(f"{where} is a {type(error.item).__qualname__}, {error.reason}") from error.__cause__


def pack(fields: dict[str, Any]) -> bytes:
    """Make an envelope.

    Args:
        fields: Values of msgpack's types: None, bool, int of 64 bits, float, str, bytes, list, dict. The
            name ``"mpwds"`` is taken by the version. Tuples arrive as lists.

    Raises:
        TypeError: A value is of another type.
        ValueError: A value is out of msgpack's range, or a field is called ``"mpwds"``.

    Example:
        >>> from mpwds.nest import unpack
        >>> unpack(pack({"sequence": 7}))
        {'sequence': 7}
    """
    if "mpwds" in fields:
        raise ValueError("an envelope's field 'mpwds' holds its version: use another name")
    envelope = {"mpwds": VERSION, **fields}
    try:
        try:
            packed: bytes = msgpack.packb(envelope)
        except UnicodeEncodeError:  # a lone surrogate, from a file name for instance, is str too
            packed = msgpack.packb(envelope, unicode_errors="surrogatepass")
    except OverflowError as error:
        raise ValueError(f"cannot send this in an envelope: {error}") from error
    return packed


class _CannotSend(Exception):
    """An item cannot be sent; ``flatten`` raises a ``TypeError`` that says where it is."""

    def __init__(self, item: Any, reason: str) -> None:
        self.item = item
        self.reason = reason


_TAGS: dict[type, int] = {
    int: BIG_INT,
    complex: COMPLEX,
    bytearray: BYTEARRAY,
    list: LIST,
    tuple: TUPLE,
    dict: DICT,
    collections.OrderedDict: ORDERED_DICT,
    collections.defaultdict: DEFAULT_DICT,
    np.ndarray: ARRAY,
    np.memmap: ARRAY,
}
_learned_tags: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary()


def _to_node(item: Any, arrays: list[Any], allow_pickle: bool, depth: int) -> Any:
    """The node of an item that lies ``depth`` containers deep. Its arrays are appended to ``arrays``."""
    kind = type(item)
    if kind in PLAIN:
        return item
    tag = _TAGS.get(kind)
    if tag is None:
        tag = _learned_tags.get(kind)
        if tag is None:
            tag = _learned_tags[kind] = _tag_of(kind)
    if tag in OF_ARRAYS:
        if not tenbin.holds(item):
            return _pickled(item, allow_pickle)
        arrays.append(item if tag == ARRAY else np.asarray(item))
        return [tag]
    if tag == TUPLE:
        if _all_plain(item):
            return [PLAIN_TUPLE, list(item)]
        return [TUPLE, _to_nodes(item, arrays, allow_pickle, depth)]
    if tag == LIST:
        if _all_plain(item):
            return [PLAIN_LIST, item]
        return [LIST, _to_nodes(item, arrays, allow_pickle, depth)]
    if tag in (DICT, ORDERED_DICT):
        return [tag, *_to_pairs(item, arrays, allow_pickle, depth)]
    if tag == BIG_INT:
        if _INT_MIN <= item <= _INT_MAX:
            return item
        return [BIG_INT, item.to_bytes(item.bit_length() // 8 + 1, "little", signed=True)]
    if tag in (NAMEDTUPLE, DATACLASS):
        return _instance(tag, item, arrays, allow_pickle, depth)
    if tag == DEFAULT_DICT:
        factory = item.default_factory
        name = next((name for name, kind in FACTORIES.items() if kind is factory), None)
        if name is None and factory is not None:
            return _pickled(item, allow_pickle)
        return [DEFAULT_DICT, *_to_pairs(item, arrays, allow_pickle, depth), name]
    if tag == COMPLEX:
        return [COMPLEX, item.real, item.imag]
    if tag == BYTEARRAY:
        return [BYTEARRAY, bytes(item)]
    return _pickled(item, allow_pickle)


def _tag_of(kind: type) -> int:
    """The tag of a type that is not in ``_TAGS``."""
    tensor = tensor_class()
    if kind is tensor or f"{kind.__module__}.{kind.__qualname__}" == "torch.nn.parameter.Parameter":
        return ARRAY
    if issubclass(kind, np.generic):
        return SCALAR
    if issubclass(kind, (np.ndarray, tensor)):
        return PICKLE
    if hasattr(kind, "write_into"):
        return ARRAY
    if fields_of(kind) is None:
        return PICKLE
    return NAMEDTUPLE if issubclass(kind, tuple) else DATACLASS


def _all_plain(items: list[Any] | tuple[Any, ...]) -> bool:
    if not items:
        return True
    if type(items[0]) not in PLAIN_OR_INT:
        return False
    kinds = set(map(type, items))
    return kinds <= PLAIN or (kinds == _INT and min(items) >= _INT_MIN and max(items) <= _INT_MAX)


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
        keys = _to_nodes(list(map(_key, item)), arrays, allow_pickle, depth)
        for key in item if not allow_pickle else ():
            part = part_with_own_equality(key)
            if part is not None:
                raise _CannotSend(
                    part,
                    "whose own __hash__ and __eq__ the receiver would have to run, which is not allowed: "
                    "use keys of text, numbers and tuples",
                )
    return keys, _to_nodes(item.values(), arrays, allow_pickle, depth)


def _key(key: Any) -> Any:
    """A key as Python's own number, which equals NumPy's: as a tensor it would be found by nobody."""
    if type(key) is tuple:
        return tuple(map(_key, key))
    return key.item() if isinstance(key, np.generic) and tenbin.holds(key) else key


def _instance(tag: int, item: Any, arrays: list[Any], allow_pickle: bool, depth: int) -> Any:
    kind = type(item)
    fields = fields_of(kind) or []
    values = item if tag == NAMEDTUPLE else [getattr(item, name, END) for name in fields]
    held = getattr(item, "__dict__", None)
    if len(values) != len(fields) or any(value is END for value in values) or (held and held.keys() - fields):
        return _pickled(item, allow_pickle)  # has other attributes, or lacks fields
    name = f"{kind.__module__}:{kind.__qualname__}"
    pickled = None
    if allow_pickle:
        try:
            pickled = _pickled_class(kind, name)
        except Exception as error:
            raise _CannotSend(item, f"whose class cannot be pickled: {error}") from error
    elif tag == DATACLASS and "<locals>" in name:
        raise _CannotSend(
            item,
            "a dataclass that is local to a function, which can only be sent pickled, and pickles are not "
            "allowed here: define it in a module",
        )
    return [tag, _to_nodes(values, arrays, allow_pickle, depth), name, fields, pickled]


def _pickled(item: Any, allow_pickle: bool) -> Any:
    if not allow_pickle:
        raise _CannotSend(
            item,
            "which can only be sent pickled, and pickles are not allowed here: convert it to arrays, "
            "numbers, text or containers of these",
        )
    try:
        return [PICKLE, dumps(item)]
    except Exception as error:
        raise _CannotSend(item, f"which cannot be pickled: {error}") from error


_pickled_classes: weakref.WeakKeyDictionary[type, bytes] = weakref.WeakKeyDictionary()


def _pickled_class(kind: type, name: str) -> bytes | None:
    """The pickle of a class that the receiver cannot find by name; ``None`` for others."""
    if kind.__module__ != "__main__" and find_class(name) is kind:
        return None
    if kind not in _pickled_classes:
        _pickled_classes[kind] = dumps(kind)
    return _pickled_classes[kind]


def _path(batch: Any, target: Any) -> str:
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
