"""One array in tenbin encoding: the kinds of elements; write, parse, view.

This code runs for every array of every batch.
"""

from __future__ import annotations

import functools
import math
import struct
import sys
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from mpwds.errors import TenbinError
from mpwds.imports import require, tensor_class

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


Output: TypeAlias = Literal["numpy", "torch"]
Buffer: TypeAlias = Any  # an object with the buffer protocol: collections.abc.Buffer from Python 3.12 on

MAGIC = b"~TenBin~"


class ArrayHeader(NamedTuple):
    """Type, shape and place of an encoded array in its buffer; offsets are in bytes from its start."""

    code: str  # tenbin's, such as "f4"
    name: str
    shape: tuple[int, ...]
    data_offset: int
    nbytes: int  # of data, without padding
    end: int  # after the padding, where the next array begins


def array_nbytes(array: Array) -> int:
    """Bytes that one array takes when encoded, a multiple of 32; ``TenbinError`` if tenbin cannot hold it."""
    if type(array) is np.ndarray and array.dtype in BY_DTYPE and array.ndim <= MAX_NDIM:
        return HEAD_NBYTES[array.ndim] + (array.nbytes + 63 & -64)
    kind, shape = describe(array)
    return HEAD_NBYTES[len(shape)] + (kind.itemsize * math.prod(shape) + 63 & -64)


def data_offset(ndim: int) -> int:
    """Bytes from the start of an encoded array to its data, for ``ndim`` dimensions."""
    return HEAD_NBYTES[ndim]


def write_array(buffer: Buffer, offset: int, array: Array, name: str = "") -> int:
    """Encode one array at an offset of a buffer; its data is copied once.

    Args:
        buffer: Any writable, C-contiguous buffer.
        offset: Where to begin, in bytes.
        array: An array of any strides and byte order, a dense CPU tensor, or a ``Deferred`` one, whose errors
            pass through and leave the place half written.
        name: Up to 8 ASCII characters.

    Returns:
        Offset after the array's padding.

    Raises:
        TenbinError: The array cannot be encoded, or does not fit; nothing is written.

    Example:
        >>> buffer = bytearray(1000)
        >>> write_array(buffer, 32, np.arange(3))
        192
        >>> parse_array(buffer, 32).shape
        (3,)
    """
    kind, shape = describe(array)
    ndim = len(shape)
    nbytes = kind.itemsize * math.prod(shape)
    start = offset + HEAD_NBYTES[ndim]
    end = start + (nbytes + 63 & -64)
    size = memoryview(buffer).nbytes
    if end > size or offset < 0:
        raise TenbinError(
            f"an array of {nbytes} bytes at offset {offset} needs the buffer up to {end}, it ends at {size}"
        )
    source: Any = array if type(array) is np.ndarray and kind.dtype is not None else source_of(kind, array)
    head = (MAGIC, 24 + 8 * ndim, kind.code8, name_bytes(name) if name else b"", ndim, *shape, MAGIC, nbytes)
    _HEADS[ndim].pack_into(buffer, offset, *head)
    if nbytes:
        out = np.frombuffer(buffer, kind.raw, nbytes // kind.itemsize, start)
        if ndim != 1:
            out = out.reshape(shape)
        if type(source) is np.ndarray:
            out[...] = source
        else:
            write_deferred(kind, source, out)
        padding = -nbytes & 63
        if padding:
            _PADDINGS[padding].pack_into(buffer, start + nbytes)
    return end


def parse_array(buffer: Buffer, offset: int) -> ArrayHeader:
    """Read and check the header of the array at an offset of a buffer.

    The header is consistent and the array lies within the buffer. The data itself is not checked.

    Raises:
        TenbinError: There is no array at that offset, or it is damaged or truncated.

    Example:
        >>> buffer = bytearray(160)
        >>> write_array(buffer, 0, np.zeros((2, 3), "uint8"), "x")
        160
        >>> parse_array(buffer, 0)
        ArrayHeader(code='u1', name='x', shape=(2, 3), data_offset=96, nbytes=6, end=160)
    """
    size = memoryview(buffer).nbytes
    if 0 <= offset <= size - _HEAD.size:
        header = _parsed_head(_HEAD.unpack_from(buffer, offset)[0])
        if header is not None and offset + header.end <= size:
            code, name, shape, start, nbytes, end = header
            return ArrayHeader(code, name, shape, offset + start, nbytes, offset + end)
    return _parse_array(buffer, offset, size)


@functools.lru_cache(maxsize=1024)
def _parsed_head(head: bytes) -> ArrayHeader | None:
    """What is before an array's data, at offset 0. Most arrays of a loader have one of a few such heads.

    ``None`` if it is damaged, or goes on because the array has more than five dimensions.
    """
    try:
        return _parse_array(head, 0, sys.maxsize)
    except (TenbinError, struct.error):
        return None


def _parse_array(buffer: Buffer, offset: int, size: int) -> ArrayHeader:
    if offset < 0 or size - offset < 16:
        raise truncated(offset, 16, size - offset)
    magic, length = CHUNK.unpack_from(buffer, offset)
    if magic != MAGIC:
        raise damaged(offset, f"{magic!r} instead of a header chunk")
    if not 24 <= length <= 24 + 8 * MAX_NDIM:
        raise damaged(offset + 8, f"a header of {length} bytes")
    at_data = offset + 16 + (length + 63 & -64)
    start = at_data + 16
    if start > size:
        raise truncated(offset, start - offset, size - offset)
    kind, name, shape, nbytes = parse_fields(buffer, offset + 16, length)
    magic, data_length = CHUNK.unpack_from(buffer, at_data)
    if magic != MAGIC:
        raise damaged(at_data, f"{magic!r} instead of a data chunk")
    if data_length != nbytes:
        what = f"{data_length} bytes of data for {kind.name} of shape {shape} ({nbytes})"
        raise damaged(at_data + 8, what)
    end = start + (nbytes + 63 & -64)
    if end > size:
        raise truncated(start, nbytes, size - start)
    return ArrayHeader(kind.code, name, shape, start, nbytes, end)


def view_array(buffer: Buffer, header: ArrayHeader, output: Output = "numpy") -> Any:
    """The array whose header ``parse_array`` returned, as a view of the buffer that was parsed.

    The view keeps the buffer alive, and is writable if it is. A tensor of a read-only buffer is a copy: torch
    has no read-only tensors.

    Raises:
        TenbinError: The installed torch has no such dtype.
        ImportError: The package that ``output`` needs is not installed: torch, or ``mpwds[bfloat16]``.
        ValueError: ``output`` is neither ``"numpy"`` nor ``"torch"``.

    Example:
        >>> buffer = bytearray(160)
        >>> write_array(buffer, 0, np.arange(3))
        160
        >>> view_array(buffer, parse_array(buffer, 0))
        array([0, 1, 2])
    """
    code, _, shape, start, nbytes, _ = header
    kind = BY_CODE[code]
    if output == "numpy":
        dtype = kind.dtype if kind.dtype is not None else ml_bfloat16()
        if not nbytes:
            return np.empty(shape, dtype)
        array = np.frombuffer(buffer, dtype, nbytes // kind.itemsize, start)
        return array if len(shape) == 1 else array.reshape(shape)
    if output != "torch":
        raise ValueError(f"output is {output!r}, expected 'numpy' or 'torch'")
    torch, dtypes = torch_dtypes()
    if code not in dtypes:
        raise TenbinError(f"the installed torch has no {kind.name}: update it, or take output='numpy'")
    if not nbytes:
        return torch.empty(shape, dtype=dtypes[code])
    array = np.frombuffer(buffer, kind.raw, nbytes // kind.itemsize, start)
    if not array.flags.writeable:
        array = array.copy()
    # Half the time of torch.frombuffer and a view.
    tensor = torch.from_numpy(array if len(shape) == 1 else array.reshape(shape))
    return tensor if kind.dtype is not None else tensor.view(dtypes[code])


# ------------------------------------------------------------------------------------------------- kinds


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
        if isinstance(array, tensor_class()):
            return _describe_tensor(array, sys.modules["torch"])
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
    if not isinstance(array, tensor_class()):
        return array
    torch: Any = sys.modules["torch"]
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
    hint = "NumPy arrays of bfloat16 need the package ml_dtypes: pip install 'mpwds[bfloat16]', "
    dtype: np.dtype[Any] = np.dtype(require("ml_dtypes", hint + "or take tensors (output='torch')").bfloat16)
    return dtype


# ------------------------------------------------------------------------------------------------ layout

CHUNK = struct.Struct("<8sq")
_NO_NAME = bytes(8)
_FIELDS = struct.Struct("<8s8sq")
# Unsigned: a negative dimension reads as one that no data fits.
_DIMS = [struct.Struct(f"<{ndim}Q") for ndim in range(MAX_NDIM + 1)]


# Everything before the data: the header chunk, its padding, the prefix of the data chunk.
_HEADS = [struct.Struct(f"<8sq8s8sq{ndim}q{-(24 + 8 * ndim) & 63}x8sq") for ndim in range(MAX_NDIM + 1)]
HEAD_NBYTES = [head.size for head in _HEADS]
_HEAD = struct.Struct(f"{HEAD_NBYTES[0]}s")
_PADDINGS = [struct.Struct(f"<{nbytes}x") for nbytes in range(64)]


def name_bytes(name: str) -> bytes:
    if not isinstance(name, str) or len(name) > 8 or not name.isascii() or name.strip("\0") != name:
        raise TenbinError(f"array name {name!r} is not up to 8 ASCII characters")
    return name.encode("ascii")


def pack_fields(kind: Kind, name: str, shape: tuple[int, ...]) -> bytes:
    return _FIELDS.pack(kind.code8, name_bytes(name), len(shape)) + _DIMS[len(shape)].pack(*shape)


def parse_fields(buffer: Buffer, offset: int, length: int) -> tuple[Kind, str, tuple[int, ...], int]:
    """Parse a header's payload of ``length`` bytes: kind, name, shape, bytes of data."""
    if length < 24:
        raise truncated(offset, 24, length)
    code8, name8, ndim = _FIELDS.unpack_from(buffer, offset)
    kind = BY_CODE8.get(code8)
    if kind is None:
        raise damaged(offset, f"the dtype code {code8!r}, which mpwds does not know")
    if not 0 <= ndim <= MAX_NDIM or length != 24 + 8 * ndim:
        raise damaged(offset + 16, f"{ndim} dimensions in a header of {length} bytes")
    shape = _DIMS[ndim].unpack_from(buffer, offset + 24)
    nbytes = kind.itemsize * math.prod(shape)
    # NumPy and torch multiply the other dimensions of an empty array, too.
    if not nbytes and kind.itemsize * math.prod(max(dim, 1) for dim in shape) > sys.maxsize:
        raise damaged(offset + 24, f"the shape {shape}, which is larger than any memory")
    if name8 == _NO_NAME:
        return kind, "", shape, nbytes
    if not name8.isascii():
        raise damaged(offset + 8, f"the name {name8!r}, which is not ASCII")
    return kind, name8.decode("ascii").strip("\0"), shape, nbytes


def damaged(offset: int, what: str) -> TenbinError:
    return TenbinError(f"tenbin at offset {offset} has {what}: the data is damaged or not tenbin", offset)


def truncated(offset: int, wanted: int, present: int) -> TenbinError:
    return TenbinError(
        f"tenbin at offset {offset} needs {wanted} bytes and their padding, only {max(present, 0)} are "
        "left: the data is truncated or damaged",
        offset,
    )
