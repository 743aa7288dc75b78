"""The kinds of elements that tenbin can encode. This code runs for every array of every batch."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from mpwds.errors import TenbinError

if TYPE_CHECKING:
    import torch

MAX_NDIM = 32  # NumPy's limit before 2.0


class Deferred(Protocol):
    """An array that does not exist yet: it is written straight into its place.

    Example:
        >>> from mpwds import tenbin
        >>> class Ramp:
        ...     dtype, shape = np.dtype("float32"), (3,)
        ...     def write_into(self, out):
        ...         out[:] = np.arange(3)
        >>> buffer = bytearray(160)
        >>> tenbin.write_array(buffer, 0, Ramp())
        160
        >>> tenbin.view_array(buffer, tenbin.parse_array(buffer, 0))
        array([0., 1., 2.], dtype=float32)
    """

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def write_into(self, out: np.ndarray[Any, Any]) -> None:
        """Fill ``out``, a C-contiguous array of this dtype and shape. Not called for an empty one."""


Array: TypeAlias = "np.ndarray[Any, Any] | np.generic[Any] | torch.Tensor | Deferred"


def holds(array: object) -> bool:
    """True if tenbin can encode this object as one array.

    Example:
        >>> holds(np.zeros(3)), holds(np.array(["text"])), holds([1, 2])
        (True, False, False)
    """
    if type(array) is np.ndarray and array.dtype in BY_DTYPE and array.ndim <= MAX_NDIM:
        return True
    try:
        describe(array)
    except TenbinError:
        return False
    return True


class Kind(NamedTuple):
    """A type of elements."""

    name: str  # NumPy's and torch's
    code: str  # tenbin's
    code8: bytes  # the code as it stands in a header
    itemsize: int
    dtype: np.dtype[Any] | None  # little-endian; None for bfloat16, which NumPy alone does not have
    raw: np.dtype[Any]  # which its bytes are copied as


def _kind(code: str) -> Kind:
    dtype = None if code == "bf2" else np.dtype(f"<{code}")
    raw = np.dtype("<i2") if dtype is None else dtype
    name = "bfloat16" if dtype is None else dtype.name
    return Kind(name, code, code.encode().ljust(8, b"\0"), raw.itemsize, dtype, raw)


_CODES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1", "bf2", "c8", "c16")
BY_CODE = {code: _kind(code) for code in _CODES}
BY_CODE8 = {kind.code8: kind for kind in BY_CODE.values()}
BY_DTYPE: dict[Any, Kind] = {kind.dtype: kind for kind in BY_CODE.values() if kind.dtype is not None}
_NUMPY_TYPES = (np.ndarray, np.generic)
_BY_TORCH_DTYPE: dict[Any, Kind] = {}  # filled when the first tensor is seen: torch may never be


def describe(array: Any) -> tuple[Kind, tuple[int, ...]]:
    """The kind and the shape of an array, without reading its data. Raises ``TenbinError``."""
    if type(array) is not np.ndarray:
        torch = sys.modules.get("torch")
        if isinstance(array, getattr(torch, "Tensor", ())):  # torch may be half imported
            return _describe_tensor(array, torch)
        if isinstance(array, np.ma.MaskedArray):
            raise TenbinError("tenbin cannot hold the mask of a masked array: use .filled() first")
        if not isinstance(array, _NUMPY_TYPES) and not _is_deferred(array):
            raise TenbinError(f"expected an array or a tensor, got {type(array).__qualname__}")
    kind = BY_DTYPE.get(array.dtype)
    if kind is None:
        kind = _learn_dtype(np.dtype(array.dtype))
    return kind, _checked(array.shape)


def _is_deferred(array: Any) -> bool:
    # isinstance with a protocol takes microseconds before Python 3.12.
    return hasattr(array, "write_into") and hasattr(array, "dtype") and not isinstance(array, type)


def _describe_tensor(tensor: Any, torch: Any) -> tuple[Kind, tuple[int, ...]]:
    kind = _BY_TORCH_DTYPE.get(tensor.dtype)
    if kind is None:
        _BY_TORCH_DTYPE.update({dtype: BY_CODE[code] for code, dtype in torch_dtypes()[1].items()})
        kind = _BY_TORCH_DTYPE.get(tensor.dtype)
        if kind is None:
            raise TenbinError(f"tenbin has no code for tensors of dtype {tensor.dtype}: convert them first")
    if not tensor.is_cpu:
        raise TenbinError(f"tensor is on device {tensor.device}: use .cpu() first")
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise TenbinError(f"tensor is not dense (layout {tensor.layout}): use .to_dense() or pad it first")
    return kind, _checked(tuple(tensor.shape))


def _checked(shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) > MAX_NDIM:
        raise TenbinError(f"array has {len(shape)} dimensions, tenbin takes up to {MAX_NDIM}")
    return shape


def _learn_dtype(dtype: np.dtype[Any]) -> Kind:
    try:
        kind = BY_DTYPE.get(dtype.newbyteorder("<"))
    except (TypeError, ValueError):
        kind = None  # another package's dtype, which has no byte order
    if kind is None and dtype.name == "bfloat16":
        kind = BY_CODE["bf2"]
    if kind is None:
        raise TenbinError(f"tenbin has no code for arrays of dtype {dtype}: convert them first")
    BY_DTYPE[dtype] = kind
    return kind


def source_of(kind: Kind, array: Any) -> Any:
    """A plain ndarray that can be copied to one of ``kind.raw``, or the ``Deferred`` itself."""
    if isinstance(array, _NUMPY_TYPES):
        array = np.asarray(array)
        return array if kind.dtype is not None else array.view(np.int16)
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return array
    try:
        return (array if kind.dtype is not None else array.detach().view(torch.int16)).numpy()
    except (TypeError, RuntimeError):
        pass
    try:  # what needs a gradient, or is a lazy conjugate or negative
        return array.detach().resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError) as error:
        raise TenbinError(f"tensor has no memory to read: {error}") from error


def write_deferred(kind: Kind, source: Deferred, out: np.ndarray[Any, Any]) -> None:
    """Write ``source`` into ``out``, an array of dtype ``kind.raw``."""
    dtype = np.dtype(source.dtype)
    if kind.dtype is None or dtype == kind.dtype:
        source.write_into(out.view(dtype))
    else:
        scratch = np.empty(out.shape, dtype)
        source.write_into(scratch)
        out[...] = scratch


@functools.cache
def torch_dtypes() -> tuple[Any, dict[str, Any]]:
    import torch

    # torch has unsigned types of more than 8 bits since 2.3.
    return torch, {
        kind.code: getattr(torch, kind.name) for kind in BY_CODE.values() if hasattr(torch, kind.name)
    }


@functools.cache
def ml_bfloat16() -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError as error:
        raise ImportError(
            "NumPy arrays of bfloat16 need the package ml_dtypes: pip install 'mpwds[bfloat16]', "
            "or take tensors (output='torch')"
        ) from error
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype
