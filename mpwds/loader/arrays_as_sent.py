"""Arrays that arrive as what they were: NumPy arrays as such, tensors as tensors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from mpwds.loader import array_views

ARRAY = ord("a")
TENSOR = ord("t")
TENSOR_WITH_GRADIENT = ord("g")


class AsTensor:
    """An array, ready or not made yet, that arrives as a tensor (implements ``mpwds.tenbin.Deferred``).

    A worker that makes one need not import torch.

    Args:
        source: A NumPy array or a ``Deferred`` one.

    Attributes:
        source: The same.

    Example:
        >>> kinds([AsTensor(np.zeros(3)), np.zeros(3)])
        b'ta'
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
        """Copies the array into ``out``, of this ``shape`` and ``dtype``."""
        if isinstance(self.source, np.ndarray):
            out[...] = self.source
        else:
            self.source.write_into(out)


def kinds(arrays: list[Any]) -> bytes:
    """What each array shall arrive as, one character each.

    Raises:
        RuntimeError: A tensor is the result of a computation that is to be differentiated.
    """
    return bytes([TENSOR if type(array) is AsTensor else _kind(array) for array in arrays])


def view(buffer: Any, offset: int, kind: int) -> Any:
    """The array that is encoded at ``offset``, as what it was.

    Example:
        >>> from mpwds import tenbin
        >>> buffer = bytearray(160)
        >>> tenbin.write_array(buffer, 0, np.arange(2))
        160
        >>> view(buffer, 0, ARRAY)
        array([0, 1])
    """
    array = array_views.view(buffer, offset, "numpy" if kind == ARRAY else "torch")
    return array.requires_grad_() if kind == TENSOR_WITH_GRADIENT else array


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
