"""Objects of any class in batches of a ``DataLoader``: pickled, with the data of their arrays out of band."""

from __future__ import annotations

import collections
import io
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpwds.imports import tensor_class
from mpwds.loader.messages import protocol
from mpwds.nest import PLAIN_OR_INT
from mpwds.pickling import OwnClassPickler
from mpwds.pipeline.stages.collation import Stack
from mpwds.trees import fields_of, tree_map, with_parts


@dataclass
class OutOfBand:
    """A pickled object, and the data of its arrays as uint8 arrays of one dimension."""

    pickled: bytes
    buffers: list[Any]


class AsTensor:
    """A NumPy or ``Deferred`` array that arrives as a tensor; a ``Deferred`` itself, without torch."""

    __slots__ = ("dtype", "shape", "source")

    def __init__(self, source: Any) -> None:
        self.source = source
        self.dtype: np.dtype[Any] = source.dtype
        self.shape: tuple[int, ...] = source.shape

    def write_into(self, out: npt.NDArray[Any]) -> None:
        if isinstance(self.source, np.ndarray):
            out[...] = self.source
        else:
            self.source.write_into(out)


def kinds(arrays: list[Any]) -> bytes:
    """The kind that each array arrives as: ``protocol.ARRAY`` and the like."""
    return bytes([protocol.TENSOR if type(array) is AsTensor else _kind(array) for array in arrays])


def _kind(array: Any) -> int:
    if isinstance(array, Stack):
        array = array.rows[0]
    if not isinstance(array, tensor_class()):
        return protocol.ARRAY
    if not array.requires_grad:
        return protocol.TENSOR
    if not array.is_leaf:
        raise RuntimeError(
            "a batch holds a tensor that requires a gradient and was computed from others: autograd does not "
            "reach across processes. Call detach() on it in the dataset or in collate_fn"
        )
    return protocol.TENSOR_WITH_GRADIENT


def take_apart(item: Any) -> Any:
    """The item itself or, if objects in it are none that ``mpwds.nest`` sends, one with ``OutOfBand``s."""
    kind = type(item)
    if kind in _LEFT:
        return item
    if kind is dict:
        values = item.values()
    elif kind is list or kind is tuple or (issubclass(kind, tuple) and fields_of(kind) is not None):
        values = item
    else:
        return item if _nest_knows(kind) else _pickled(item)
    if set(map(type, values)) <= _LEFT:
        return item
    return with_parts(item, [take_apart(value) for value in values])


def put_together(item: Any) -> Any:
    return tree_map(item, OutOfBand, _unpickled)


def _unpickled(item: OutOfBand) -> Any:
    return pickle.loads(item.pickled, buffers=[memoryview(buffer) for buffer in item.buffers])


def _nest_knows(kind: type) -> bool:
    """True if ``mpwds.nest`` sends instances of this type without pickling them."""
    is_array = issubclass(kind, (np.generic, tensor_class())) or hasattr(kind, "write_into")
    return is_array or fields_of(kind) is not None


def _pickled(item: Any) -> Any:
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    try:
        OwnClassPickler(stream, protocol=5, buffer_callback=buffers.append).dump(item)
    except Exception:
        return item  # mpwds.nest raises the error, which says where it is
    return OutOfBand(stream.getvalue(), [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers])


_LEFT = frozenset(
    {*PLAIN_OR_INT, complex, bytearray, np.ndarray, collections.OrderedDict, collections.defaultdict}
)
