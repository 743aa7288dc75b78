"""Nested batches to (structure, arrays) and back, and the envelope that carries a structure.

A *structure* is a batch without its arrays. Plain values stand for themselves, everything else is a node
``[tag, ...]`` of msgpack's types. The arrays follow in depth-first order, so the node of an array needs no
number. An *envelope* is a msgpack map with a version, which carries the structure and further fields.
"""

from __future__ import annotations

import collections
import functools
import json
import pickle
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from mpwds import tenbin
from mpwds.errors import EnvelopeError
from mpwds.imports import tensor_class
from mpwds.nest.envelope import VERSION, pack, unpack
from mpwds.pickling import dumps, find_class
from mpwds.trees import children, fields_of, instance

__all__ = ["MAX_DEPTH", "VERSION", "Structure", "flatten", "pack", "unflatten", "unpack"]

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
_OF_ARRAYS = (ARRAY, SCALAR)

_PLAIN = {str, bytes, float, bool, type(None)}  # with int, which has a range in msgpack
PLAIN_OR_INT = _PLAIN | {int}
_FACTORIES = {kind.__name__: kind for kind in (list, dict, set, tuple, str, bytes, int, float, complex, bool)}

_END: Any = object()  # stands for a missing value: the iterator has ended, or the field was never set

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
        where = "batch" + (_way(batch, error.item, {}) or "")
        raise TypeError(f"{where} is a {type(error.item).__qualname__}, {error.reason}") from error.__cause__


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
    if next(remaining, _END) is not _END:
        raise EnvelopeError(f"the structure has fewer arrays than the {len(arrays)} that came with it")
    return batch


# ---------------------------------------------------------------------------------------------------- sending


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
    if kind in _PLAIN:
        return item
    tag = _TAGS.get(kind)
    if tag is None:
        tag = _learned_tags.get(kind)
        if tag is None:
            tag = _learned_tags[kind] = _tag_of(kind)
    if tag in _OF_ARRAYS:
        if not tenbin.holds(item):
            return _pickled(item, allow_pickle)
        arrays.append(item if tag == ARRAY else np.asarray(item))
        return [tag]
    if tag in (LIST, TUPLE):
        if _all_plain(item):
            return [PLAIN_LIST, item] if tag == LIST else [PLAIN_TUPLE, list(item)]
        return [tag, _to_nodes(item, arrays, allow_pickle, depth)]
    if tag in (DICT, ORDERED_DICT):
        return [tag, *_to_pairs(item, arrays, allow_pickle, depth)]
    if tag == BIG_INT:
        if _INT_MIN <= item <= _INT_MAX:
            return item
        return [BIG_INT, item.to_bytes(item.bit_length() // 8 + 1, "little", signed=True)]
    if tag in (NAMEDTUPLE, DATACLASS):
        return _instance_to_node(tag, item, arrays, allow_pickle, depth)
    if tag == DEFAULT_DICT:
        factory = item.default_factory
        name = next((name for name, kind in _FACTORIES.items() if kind is factory), None)
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
    return kinds <= _PLAIN or (kinds == _INT and min(items) >= _INT_MIN and max(items) <= _INT_MAX)


def _to_nodes(items: Any, arrays: list[Any], allow_pickle: bool, depth: int) -> list[Any]:
    if depth >= MAX_DEPTH:
        raise ValueError(f"the batch is nested more than {MAX_DEPTH} levels deep, or contains itself")
    depth += 1
    return [item if type(item) in _PLAIN else _to_node(item, arrays, allow_pickle, depth) for item in items]


def _to_pairs(
    item: dict[Any, Any], arrays: list[Any], allow_pickle: bool, depth: int
) -> tuple[list[Any], list[Any]]:
    if set(map(type, item)) <= _PLAIN:
        keys = list(item)
    else:
        keys = _to_nodes(list(map(_key, item)), arrays, allow_pickle, depth)
        if not allow_pickle and (part := _part_with_own_equality(item)) is not None:
            what = "whose own __hash__ and __eq__ the receiver may not run"
            raise _CannotSend(part, f"{what}: use keys of text, numbers and tuples")
    return keys, _to_nodes(item.values(), arrays, allow_pickle, depth)


def _key(key: Any) -> Any:
    """A key as Python's own number, which equals NumPy's: as a tensor it would be found by nobody."""
    if type(key) is tuple:
        return tuple(map(_key, key))
    return key.item() if isinstance(key, np.generic) and tenbin.holds(key) else key


def _instance_to_node(tag: int, item: Any, arrays: list[Any], allow_pickle: bool, depth: int) -> Any:
    kind = type(item)
    fields = fields_of(kind) or []
    values = item if tag == NAMEDTUPLE else [getattr(item, name, _END) for name in fields]
    held = getattr(item, "__dict__", None)
    if len(values) != len(fields) or any(each is _END for each in values) or (held and held.keys() - fields):
        return _pickled(item, allow_pickle)  # has other attributes, or lacks fields
    name = f"{kind.__module__}:{kind.__qualname__}"
    pickled = None
    if allow_pickle:
        try:
            pickled = _pickled_class(kind, name)
        except Exception as error:
            raise _CannotSend(item, f"whose class cannot be pickled: {error}") from error
    elif tag == DATACLASS and "<locals>" in name:
        what = "a dataclass that is local to a function, which can only be sent pickled"
        raise _CannotSend(item, f"{what}, and pickles are not allowed here: define it in a module")
    return [tag, _to_nodes(values, arrays, allow_pickle, depth), name, fields, pickled]


def _pickled(item: Any, allow_pickle: bool) -> Any:
    if not allow_pickle:
        what = "which can only be sent pickled, and pickles are not allowed here"
        raise _CannotSend(item, f"{what}: convert it to arrays, numbers, text or containers of these")
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


def _way(here: Any, target: Any, visited: dict[int, Any]) -> str | None:
    """The first way from ``here`` to an item in it, such as ``["meta"][1]``; ``None`` if there is none."""
    if here is target:
        return ""
    if type(here) not in PLAIN_OR_INT and id(here) not in visited:
        visited[id(here)] = here  # keeps it alive, so that no other object gets its id
        for step, child in _steps(here):
            rest = _way(child, target, visited)
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


def _part_with_own_equality(keys: Iterable[Any]) -> Any:
    """The first part of keys whose class runs its own ``__hash__`` or ``__eq__``; ``None`` if none does."""
    for key in keys:
        kind = type(key)
        base: type = tuple if issubclass(kind, tuple) else object
        is_own = any(getattr(kind, name) is not getattr(base, name) for name in ("__hash__", "__eq__"))
        if is_own and fields_of(kind) is not None:
            return key
        if base is tuple and (part := _part_with_own_equality(tuple.__iter__(key))) is not None:
            return part
    return None


# -------------------------------------------------------------------------------------------------- receiving

# Of the node of each tag, with the tag.
_LENGTHS = {
    **dict.fromkeys((ARRAY, SCALAR), 1),
    **dict.fromkeys((LIST, TUPLE, PLAIN_LIST, PLAIN_TUPLE, BIG_INT, BYTEARRAY, PICKLE), 2),
    **dict.fromkeys((DICT, ORDERED_DICT, COMPLEX), 3),
    DEFAULT_DICT: 4,
    **dict.fromkeys((NAMEDTUPLE, DATACLASS), 5),
}
_IS_PICKLED = "the structure holds a {}, which is pickled: pass allow_pickle=True if you trust the sender"


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
        return _instance_of(node, arrays, allow_pickle, depth)
    if tag == ORDERED_DICT:
        return collections.OrderedDict(_dict(node, arrays, allow_pickle, depth))
    if tag == DEFAULT_DICT:
        factory = _FACTORIES.get(node[3]) if type(node[3]) is str else None
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
    keys = node[1]
    if type(keys) is not list or not set(map(type, keys)) <= PLAIN_OR_INT:
        keys = _from_nodes(keys, arrays, allow_pickle, depth)
    values = _from_nodes(node[2], arrays, allow_pickle, depth)
    may_run_code = not allow_pickle and list in map(type, node[1])
    if may_run_code and (part := _part_with_own_equality(keys)) is not None:
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


def _instance_of(node: Any, arrays: Iterator[Any], allow_pickle: bool, depth: int) -> Any:
    tag, nodes, name, fields, pickled = node
    if type(name) is not str or type(fields) is not list or not set(map(type, fields)) <= {str}:
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
