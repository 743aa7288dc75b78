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
    """Whether tenbin can encode this object as one array.

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
    """A type of elements.

    Attributes:
        name: NumPy's and torch's name of it.
        code: tenbin's.
        code8: The same, as it stands in a header.
        itemsize: Bytes of one element.
        dtype: NumPy's, little-endian; ``None`` for bfloat16, which NumPy alone does not have.
        raw: The dtype its bytes are copied as.
    """

    name: str
    code: str
    code8: bytes
    itemsize: int
    dtype: np.dtype[Any] | None
    raw: np.dtype[Any]


def _kind(code: str, name: str) -> Kind:
    dtype = None if code == "bf2" else np.dtype(name).newbyteorder("<")
    raw = np.dtype("<i2") if dtype is None else dtype
    return Kind(name, code, code.encode().ljust(8, b"\0"), raw.itemsize, dtype, raw)


_NAMES = {
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
    "i1": "int8",
    "i2": "int16",
    "i4": "int32",
    "i8": "int64",
    "u1": "uint8",
    "u2": "uint16",
    "u4": "uint32",
    "u8": "uint64",
    "b1": "bool",
    "bf2": "bfloat16",
    "c8": "complex64",
    "c16": "complex128",
}
BY_CODE = {code: _kind(code, name) for code, name in _NAMES.items()}
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
    shape = array.shape
    return kind, shape if len(shape) <= MAX_NDIM else _refuse_shape(shape)


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
    shape = tuple(tensor.shape)
    return kind, shape if len(shape) <= MAX_NDIM else _refuse_shape(shape)


def _refuse_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    raise TenbinError(f"array has {len(shape)} dimensions, tenbin takes up to {MAX_NDIM}")


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

    dtypes = {code: getattr(torch, name, None) for code, name in _NAMES.items()}  # uint16.. are of 2.3
    return torch, {code: dtype for code, dtype in dtypes.items() if dtype is not None}


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
