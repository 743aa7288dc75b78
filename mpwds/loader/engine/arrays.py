"""The arrays of a batch: views of the memory they arrive in, as NumPy arrays or tensors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from mpwds import tenbin
from mpwds.tenbin.kinds import torch_dtypes

ARRAY = ord("a")
TENSOR = ord("t")
TENSOR_WITH_GRADIENT = ord("g")


class AsTensor:
    """A NumPy or ``Deferred`` array that arrives as a tensor, from a worker that need not import torch.

    Implements ``mpwds.tenbin.Deferred``.
    """

    __slots__ = ("source",)

    def __init__(self, source: Any) -> None:
        self.source = source

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.source.dtype
        return dtype

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.source.shape
        return shape

    def write_into(self, out: npt.NDArray[Any]) -> None:
        if isinstance(self.source, np.ndarray):
            out[...] = self.source
        else:
            self.source.write_into(out)


def kinds(arrays: list[Any]) -> bytes:
    """The kind that each array arrives as, one character each.

    Raises:
        RuntimeError: A tensor is the result of a computation that is to be differentiated.
    """
    return bytes([TENSOR if type(array) is AsTensor else _kind(array) for array in arrays])


def view_as_sent(buffer: Any, offset: int, kind: int) -> Any:
    """The array that is encoded at ``offset``, as the kind that :func:`kinds` gave it."""
    array = view(buffer, offset, "numpy" if kind == ARRAY else "torch")
    return array.requires_grad_() if kind == TENSOR_WITH_GRADIENT else array


def view(memory: Any, offset: int, output: tenbin.Output) -> Any:
    """The array that is encoded at an offset of a buffer, or of a tensor of bytes.

    Tensors made of a tensor are torch's views of it, so torch's allocator of pinned memory learns on which
    streams they are used.

    Raises:
        TenbinError: There is no array at that offset, or torch has no such dtype.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(memory, torch.Tensor):
        return tenbin.view_array(memory, tenbin.parse_array(memory, offset), output)
    written = memory.numpy()
    header = tenbin.parse_array(written, offset)
    dtype = torch_dtypes()[1].get(header.code) if output == "torch" else None
    if dtype is None or not header.nbytes:
        return tenbin.view_array(written, header, output)
    start = header.data_offset
    return memory[start : start + header.nbytes].view(dtype).view(header.shape)


def _kind(array: Any) -> int:
    tensor = getattr(sys.modules.get("torch"), "Tensor", ())
    if not isinstance(array, tensor):
        return ARRAY
    if not array.requires_grad:
        return TENSOR
    if not array.is_leaf:
        raise RuntimeError(
            "a batch holds a tensor that requires a gradient and was computed from others: autograd does not "
            "reach across processes. Call detach() on it in the dataset or in collate_fn"
        )
    return TENSOR_WITH_GRADIENT
