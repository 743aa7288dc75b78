"""Nested batches to (structure, arrays) and back, and the envelope that carries a structure.

A *structure* is what is left of a batch when its arrays are taken out: plain values as they are, and
for everything else a node ``[tag, ...]`` of msgpack's types. The arrays follow in depth-first order, so
a node for an array needs no number. In an envelope, a msgpack map, the structure travels with whatever
else the sender has to say.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import msgpack

from mpwds import tenbin
from mpwds.errors import EnvelopeError
from mpwds.nest_classes import fields_of
from mpwds.nest_decode import CannotReceive, from_node
from mpwds.nest_encode import CannotSend, to_node
from mpwds.nest_nodes import (
    DATACLASS,
    DEFAULT_DICT,
    DICT,
    END,
    LIST,
    MAX_DEPTH,
    NAMEDTUPLE,
    ORDERED_DICT,
    PLAIN_OR_INT,
    STR,
    TUPLE,
)

__all__ = ["MAX_DEPTH", "VERSION", "Structure", "flatten", "pack", "unflatten", "unpack"]

Structure: TypeAlias = "bool | int | float | str | bytes | list[Any] | None"

VERSION = 1


def flatten(batch: Any, *, allow_pickle: bool = False) -> tuple[Structure, list[tenbin.Array]]:
    """Take a batch apart into its structure and its arrays.

    Containers are dict, list, tuple, namedtuple, dataclass, OrderedDict and defaultdict (of a builtin
    type), in any nesting. Leaves are arrays, tensors, ``Deferred`` arrays, NumPy scalars, None, bool, int,
    float, complex, str, bytes and bytearray. Everything else is pickled with cloudpickle where that is
    allowed: other subclasses of the containers, arrays that tenbin cannot hold, and namedtuples and
    dataclasses that have their own way to be pickled or hold more than their fields.

    Args:
        batch: What to take apart. It is not changed; arrays are neither copied nor converted.
        allow_pickle: Pickle other objects, and classes that the receiver cannot find by name.

    Returns:
        ``(structure, arrays)`` for ``unflatten``, the arrays depth first. Requirement of a gradient and
        object identity (the same array twice) are not kept.

    Raises:
        TypeError: An object is none of the above, or is a key whose class has its own ``__hash__`` or
            ``__eq__`` (a dataclass, say), and pickling is not allowed, or fails. The message tells where in
            the batch it is.
        ValueError: The batch is nested more than 128 deep, or contains itself.

    Example:
        >>> import numpy as np
        >>> flatten({"x": np.zeros(2), "y": [1, 2]})
        ([4, ['x', 'y'], [[0], [7, [1, 2]]]], [array([0., 0.])])
        >>> flatten({"meta": [1, {2}]})
        Traceback (most recent call last):
        ...
        TypeError: batch["meta"][1] is a set, which can only be sent pickled: ...
    """
    arrays: list[Any] = []
    try:
        return to_node(batch, arrays, allow_pickle, 0), arrays
    except CannotSend as error:
        path = _path(batch, error.item, _object_children)
        raise TypeError(f"{path} is a {type(error.item).__qualname__}, {error.reason}") from error.__cause__


def unflatten(structure: Structure, arrays: Sequence[Any], *, allow_pickle: bool = False) -> Any:
    """Put a batch together again from its structure and its arrays.

    Classes are looked up among the modules that are imported already, and instances are made without
    running code of the class. A namedtuple whose class is not found comes back as an equivalent one.

    Args:
        structure: What ``flatten`` returned, possibly by way of an envelope.
        arrays: As many arrays as it returned, in the same order: the same ones, or what was decoded from
            them. NumPy scalars come back as such if they are NumPy's, else as 0-d tensors.
        allow_pickle: Unpickle, and take keys whose classes have their own ``__hash__`` or ``__eq__``. That
            runs whatever code the sender wants: only for senders you trust.

    Raises:
        EnvelopeError: The structure is malformed or does not fit the arrays.
        TypeError: It holds a pickle or such a key and that is not allowed, or a dataclass that is not
            imported.

    Example:
        >>> import numpy as np
        >>> unflatten(*flatten({"x": np.zeros(2), "y": (1, None)}))
        {'x': array([0., 0.]), 'y': (1, None)}
    """
    remaining = iter(arrays)
    try:
        batch = from_node(structure, remaining, allow_pickle, 0)
    except CannotReceive as error:
        raise TypeError(f"{_path(structure, error.node, _node_children)} {error.reason}") from error.__cause__
    if next(remaining, END) is not END:
        raise EnvelopeError(f"the structure has fewer arrays than the {len(arrays)} that came with it")
    return batch


def pack(fields: dict[str, Any]) -> bytes:
    """Make an envelope.

    Args:
        fields: What to send: values of msgpack's types (None, bool, int of 64 bits, float, str, bytes,
            list, dict), structures among them. ``"mpwds"`` is taken, by the version. Tuples arrive as lists.

    Raises:
        TypeError: A value is of another type.
        ValueError: A value is out of msgpack's range, or a field is called ``"mpwds"``.

    Example:
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


def unpack(data: tenbin.Buffer) -> dict[str, Any]:
    """Open an envelope. A length inside it costs no memory unless the bytes are there.

    Args:
        data: The envelope; any C-contiguous buffer.

    Raises:
        EnvelopeError: The bytes are no envelope, or one of another version.

    Example:
        >>> unpack(b"no envelope")
        Traceback (most recent call last):
        ...
        mpwds.errors.EnvelopeError: the bytes are no envelope: unpack(b) received extra data.
    """
    size = memoryview(data).nbytes
    try:
        if size > 1024:
            # Nested arrays may each claim as many elements as there are bytes, and msgpack makes room for
            # them as it goes. Skipping makes room for nothing, and stops where a claim is not true.
            scout = msgpack.Unpacker(max_buffer_size=size)
            scout.feed(data)
            scout.skip()
        fields = msgpack.unpackb(
            data,
            strict_map_key=False,
            unicode_errors="surrogatepass",
            max_str_len=size,
            max_bin_len=size,
            max_array_len=size,
            max_map_len=size // 2,
            max_ext_len=size,
        )
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise EnvelopeError(f"the bytes are no envelope: {error or type(error).__name__}") from error
    if type(fields) is not dict:
        raise EnvelopeError(f"the message is no envelope but a {type(fields).__qualname__}")
    version = fields.pop("mpwds", None)
    if type(version) is not int:
        raise EnvelopeError("the message is no envelope of mpwds: it has no version")
    if version != VERSION:
        raise EnvelopeError(
            f"the envelope is of version {version}, this mpwds speaks version {VERSION}: "
            "use the same mpwds on both sides"
        )
    if not set(map(type, fields)) <= STR:
        raise EnvelopeError("the envelope has a field whose name is no str")
    opened: dict[str, Any] = fields
    return opened


# ------------------------------------------------------------------------------------- paths, for errors

_Children: TypeAlias = Callable[[Any], "Iterator[tuple[str, Any]]"]


def _path(root: Any, target: Any, children: _Children) -> str:
    """Where ``target`` is in the batch: the first way to it that encoding or decoding takes."""
    return "batch" + (_way(root, target, children, 0, {}) or "")


def _way(here: Any, target: Any, children: _Children, depth: int, visited: dict[int, Any]) -> str | None:
    if here is target:
        return ""
    if depth <= MAX_DEPTH and type(here) not in PLAIN_OR_INT and id(here) not in visited:
        visited[id(here)] = here  # keeps it alive, so that no other object gets its id
        for step, child in children(here):
            rest = _way(child, target, children, depth + 1, visited)
            if rest is not None:
                return step + rest
    return None


def _subscript(key: Any) -> str:
    return f"[{json.dumps(key, ensure_ascii=False) if type(key) is str else repr(key)}]"


def _object_children(item: Any) -> Iterator[tuple[str, Any]]:
    kind = type(item)  # subclasses are leaves: they are sent pickled
    if kind in (dict, collections.OrderedDict, collections.defaultdict):
        yield from ((f"'s key {key!r}", key) for key in item)
        yield from ((_subscript(key), value) for key, value in item.items())
    elif kind in (list, tuple):
        yield from ((f"[{index}]", value) for index, value in enumerate(item))
    else:
        yield from ((f".{name}", getattr(item, name, None)) for name in fields_of(kind) or [])


def _node_children(node: Any) -> Iterator[tuple[str, Any]]:
    if type(node) is not list or len(node) < 2 or type(node[1]) is not list:
        return
    tag, items = node[0], node[1]
    if tag in (DICT, ORDERED_DICT, DEFAULT_DICT):
        yield from ((f"'s key {index}", key) for index, key in enumerate(items))
        yield from ((_subscript(key), value) for key, value in zip(items, node[2], strict=False))
    elif tag in (NAMEDTUPLE, DATACLASS):
        yield from ((f".{name}", value) for name, value in zip(node[3], items, strict=False))
    elif tag in (LIST, TUPLE):
        yield from ((f"[{index}]", value) for index, value in enumerate(items))
