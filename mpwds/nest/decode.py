"""The receiver's side: structure and arrays to a batch, an envelope to its fields. Trusts neither."""

from __future__ import annotations

import collections
import functools
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import msgpack

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
    PLAIN_LIST,
    PLAIN_OR_INT,
    PLAIN_TUPLE,
    SCALAR,
    STR,
    TUPLE,
    VERSION,
    Structure,
    part_with_own_equality,
)
from mpwds.pickling import find_class
from mpwds.tenbin import Buffer
from mpwds.trees import fields_of, instance

# Of the node of each tag, with the tag.
_LENGTHS = {
    **dict.fromkeys((ARRAY, SCALAR), 1),
    **dict.fromkeys((LIST, TUPLE, PLAIN_LIST, PLAIN_TUPLE, BIG_INT, BYTEARRAY, PICKLE), 2),
    **dict.fromkeys((DICT, ORDERED_DICT, COMPLEX), 3),
    **dict.fromkeys((DEFAULT_DICT,), 4),
    **dict.fromkeys((NAMEDTUPLE, DATACLASS), 5),
}
_HARMLESS_NBYTES = 1 << 10
"""False claims in so few bytes make msgpack allocate 8 MB at the most."""

_IS_PICKLED = "the structure holds a {}, which is pickled: pass allow_pickle=True if you trust the sender"


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
        (batch,) = _from_nodes([structure], remaining, allow_pickle, 0)
    except StopIteration:
        raise EnvelopeError("the structure has more arrays than came with it") from None
    if next(remaining, END) is not END:
        raise EnvelopeError(f"the structure has fewer arrays than the {len(arrays)} that came with it")
    return batch


def unpack(data: Buffer, *, trusted: bool = False) -> dict[str, Any]:
    """Open an envelope.

    Args:
        data: The envelope; any C-contiguous buffer.
        trusted: Parse the bytes at once: they come from another process of this program. Bytes of a file or a
            network are first checked, so that a false length in them costs no memory.

    Raises:
        EnvelopeError: The bytes are not an envelope, or of another version.
    """
    try:
        if not trusted and memoryview(data).nbytes > _HARMLESS_NBYTES:
            # Each of many nested arrays may claim as many elements as there are bytes, and msgpack allocates
            # all of them. Skipping allocates nothing, and fails at the first false claim.
            scout = msgpack.Unpacker(max_buffer_size=memoryview(data).nbytes)
            scout.feed(data)
            scout.skip()
        fields = msgpack.unpackb(data, strict_map_key=False, unicode_errors="surrogatepass")
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise EnvelopeError(f"the bytes are not an envelope: {error or type(error).__name__}") from error
    version = fields.pop("mpwds", None) if type(fields) is dict else None
    if type(version) is not int:
        raise EnvelopeError("the message is not an envelope of mpwds: it has no version")
    if version != VERSION:
        raise EnvelopeError(
            f"the envelope is of version {version}, this mpwds speaks version {VERSION}: "
            "use the same mpwds on both sides"
        )
    if not set(map(type, fields)) <= STR:
        raise EnvelopeError("the envelope has a field whose name is not a str")
    opened: dict[str, Any] = fields
    return opened


def _from_nodes(nodes: Any, arrays: Iterator[Any], allow_pickle: bool, depth: int) -> list[Any]:
    """The items of nodes that lie ``depth`` containers deep. Their arrays are taken from ``arrays``.

    Raises StopIteration if there are too few.
    """
    if type(nodes) is not list:
        raise _malformed("it has a container without a list")
    if depth > MAX_DEPTH:
        raise _malformed(f"it is nested more than {MAX_DEPTH} levels deep")
    items: list[Any] = []
    for node in nodes:
        if type(node) in PLAIN_OR_INT:
            items.append(node)
            continue
        if type(node) is not list:
            raise _malformed(f"it has a {type(node).__qualname__}")
        tag = node[0] if node and type(node[0]) is int else -1
        if _LENGTHS.get(tag) != len(node):
            raise _malformed("it has a node that mpwds does not know")
        if tag == ARRAY:
            items.append(next(arrays))
        elif tag in (PLAIN_LIST, PLAIN_TUPLE):
            content = node[1]
            if type(content) is not list or not set(map(type, content)) <= PLAIN_OR_INT:
                raise _malformed("it has a plain list of other things")
            items.append(content.copy() if tag == PLAIN_LIST else tuple(content))
        elif tag == DICT:
            items.append(_dict(node, arrays, allow_pickle, depth + 1))
        else:
            items.append(_from_node(tag, node, arrays, allow_pickle, depth + 1))
    return items


def _from_node(tag: int, node: list[Any], arrays: Iterator[Any], allow_pickle: bool, depth: int) -> Any:
    """The item of a node that is no array, plain list or dict; its content lies ``depth`` containers deep."""
    if tag == SCALAR:
        array = next(arrays)
        if len(array.shape):
            raise EnvelopeError(f"the structure has a scalar for an array of shape {tuple(array.shape)}")
        return array[()]
    content = node[1]
    if tag == TUPLE:
        return tuple(_from_nodes(content, arrays, allow_pickle, depth))
    if tag == LIST:
        return _from_nodes(content, arrays, allow_pickle, depth)
    if tag in (NAMEDTUPLE, DATACLASS):
        return _instance(node, arrays, allow_pickle, depth)
    if tag == ORDERED_DICT:
        return collections.OrderedDict(_dict(node, arrays, allow_pickle, depth))
    if tag == DEFAULT_DICT:
        factory = FACTORIES.get(node[3]) if type(node[3]) is str else None
        if node[3] is not None and factory is None:
            raise _malformed("it has a defaultdict of an unknown type")
        return collections.defaultdict(factory, _dict(node, arrays, allow_pickle, depth))
    if tag == COMPLEX:
        if type(content) is not float or type(node[2]) is not float:
            raise _malformed("it has a complex number of other things")
        return complex(content, node[2])
    if type(content) is not bytes:
        raise _malformed("it has a node without its bytes")
    if tag == BIG_INT:
        return int.from_bytes(content, "little", signed=True)
    if tag == BYTEARRAY:
        return bytearray(content)
    if not allow_pickle:
        raise TypeError(_IS_PICKLED.format("value"))
    return _unpickle(content)


def _dict(node: Any, arrays: Iterator[Any], allow_pickle: bool, depth: int) -> dict[Any, Any]:
    keys = _from_nodes(node[1], arrays, allow_pickle, depth)
    values = _from_nodes(node[2], arrays, allow_pickle, depth)
    if not allow_pickle and list in map(type, node[1]):
        for key in keys:
            part = part_with_own_equality(key)
            if part is not None:
                raise TypeError(
                    f"the structure has a {type(part).__qualname__} in a dict's key, whose own __hash__ and "
                    "__eq__ would run: pass allow_pickle=True to let them, if you trust the sender"
                )
    try:
        result = dict(zip(keys, values, strict=True))
    except (TypeError, ValueError) as error:
        raise _malformed(f"it has a dict with a bad key ({error})") from error
    if len(result) != len(keys):
        raise _malformed("it has a dict with the same key twice")
    return result


def _instance(node: Any, arrays: Iterator[Any], allow_pickle: bool, depth: int) -> Any:
    tag, nodes, name, fields, pickled = node
    if type(name) is not str or type(fields) is not list or not set(map(type, fields)) <= STR:
        raise _malformed("it has an instance without a class")
    kind = _class_of(name, fields, pickled, allow_pickle)
    values = _from_nodes(nodes, arrays, allow_pickle, depth)
    if len(values) != len(fields):
        raise _malformed(f"it has {len(values)} values for fields {fields}")
    if tag == NAMEDTUPLE:
        if kind is None or not issubclass(kind, tuple):
            kind = _stand_in(name, tuple(fields))
    elif kind is None or issubclass(kind, tuple):
        module, _, qualname = name.partition(":")
        raise TypeError(
            f"the structure has a {qualname!r} of module {module!r}, and no dataclass of that name with the "
            f"fields {fields} is imported: import it before receiving"
        )
    return instance(kind, fields, values)


def _class_of(name: str, fields: list[str], pickled: Any, allow_pickle: bool) -> type | None:
    """The class of an instance; ``None`` if this process does not have it and it was not sent."""
    kind = find_class(name)
    if kind is not None and fields_of(kind) == fields:
        return kind
    if pickled is None:
        return None
    if type(pickled) is not bytes:
        raise _malformed("it has a class without its bytes")
    if not allow_pickle:
        raise TypeError(_IS_PICKLED.format("class"))
    kind = _unpickle_class(pickled)
    if fields_of(kind) != fields:
        raise _malformed(f"the class {name} has not the fields {fields}")
    return kind


@functools.lru_cache(maxsize=256)
def _unpickle_class(data: bytes) -> type:
    """The class that the sender pickled; the same object for the same bytes."""
    found = _unpickle(data)
    if not isinstance(found, type):
        raise _malformed("its pickled class is not a class")
    return found


def _unpickle(data: bytes) -> Any:
    try:
        return pickle.loads(data)
    except Exception as error:
        raise EnvelopeError(f"the structure holds a pickle that cannot be opened: {error!r}") from error


@functools.lru_cache(maxsize=256)
def _stand_in(name: str, fields: tuple[str, ...]) -> type:
    """A namedtuple type that stands in for one that this process does not have."""
    module, _, qualname = name.partition(":")
    try:
        # rename: namedtuples that were made with it have fields that would be refused.
        kind = collections.namedtuple(qualname.rpartition(".")[2], fields, rename=True, module=module)  # type: ignore[misc]  # fields are known at run time only
    except (ValueError, SyntaxError, TypeError) as error:
        raise _malformed(f"bad namedtuple ({error})") from error
    if fields_of(kind) != list(fields):
        raise _malformed(f"a namedtuple cannot have the fields {fields}")
    return kind


def _malformed(what: str) -> EnvelopeError:
    return EnvelopeError(f"the structure is malformed: {what}")
