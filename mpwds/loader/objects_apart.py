"""Objects of any class in a batch: pickled, with the arrays and tensors they hold travelling as arrays."""

from __future__ import annotations

import collections
import io
import pickle
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpwds.loader.dataset_pickler import reduced_tensor
from mpwds.nest.classes import fields_of
from mpwds.nest.nodes import PLAIN_OR_INT
from mpwds.pickling import _Pickler as _OwnClassPickler


@dataclass
class Apart:
    """An object on its way.

    Args:
        pickled: Its pickle.
        buffers: What its arrays hold, uint8 arrays of one dimension.
    """

    pickled: bytes
    buffers: list[Any]


def take_apart(item: Any) -> Any:
    """A batch with an :class:`Apart` in place of each object that would else be pickled arrays and all.

    Looked for in dicts, lists, tuples and namedtuples. Anything else is left to ``mpwds.nest``.

    Returns:
        ``item`` itself if there is nothing to take apart.

    Example:
        >>> batch = [1, collections.UserDict(x=np.zeros(3))]
        >>> type(take_apart(batch)[1]).__name__, len(take_apart(batch)[1].buffers)
        ('Apart', 1)
        >>> put_together(take_apart(batch))
        [1, {'x': array([0., 0., 0.])}]
    """
    kind = type(item)
    if kind in _LEFT:
        return item
    if kind is dict:
        if set(map(type, item.values())) <= _LEFT:
            return item
        parts = [take_apart(value) for value in item.values()]
        changed = any(part is not value for part, value in zip(parts, item.values(), strict=True))
        return dict(zip(item, parts, strict=True)) if changed else item
    if kind is list or kind is tuple or (issubclass(kind, tuple) and fields_of(kind) is not None):
        if set(map(type, item)) <= _LEFT:
            return item
        parts = [take_apart(value) for value in item]
        if all(part is value for part, value in zip(parts, item, strict=True)):
            return item
        return parts if kind is list else tuple.__new__(kind, parts)
    return item if _has_a_way(kind) else _apart(item)


def put_together(item: Any) -> Any:
    """The batch that :func:`take_apart` took apart, possibly by way of a message."""
    kind = type(item)
    if kind is Apart:
        return pickle.loads(item.pickled, buffers=[memoryview(buffer) for buffer in item.buffers])
    if kind is dict:
        return {key: put_together(value) for key, value in item.items()}
    if kind is list:
        return [put_together(value) for value in item]
    if isinstance(item, tuple):
        return tuple.__new__(kind, [put_together(value) for value in item])
    return item


def _has_a_way(kind: type) -> bool:
    """Whether ``mpwds.nest`` has a better way with instances of this type than to pickle them."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", ())
    is_array = issubclass(kind, (np.generic, tensor)) or hasattr(kind, "write_into")
    return is_array or fields_of(kind) is not None


def _apart(item: Any) -> Any:
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    try:
        _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(item)
    except Exception:
        return item  # for mpwds.nest, whose error says where it is
    return Apart(stream.getvalue(), [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers])


class _Pickler(_OwnClassPickler):
    def reducer_override(self, item: Any) -> Any:
        reduced = reduced_tensor(item)
        return super().reducer_override(item) if reduced is None else reduced


_LEFT = frozenset(
    {*PLAIN_OR_INT, complex, bytearray, np.ndarray, collections.OrderedDict, collections.defaultdict}
)
