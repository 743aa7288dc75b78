"""One array in tenbin encoding: write, parse, view. This code runs for every array of every batch."""

from __future__ import annotations

import math
import struct
import sys
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from mpwds.errors import TenbinError
from mpwds.tenbin.kinds import (
    BY_CODE,
    BY_CODE8,
    BY_DTYPE,
    MAX_NDIM,
    Array,
    Kind,
    describe,
    ml_bfloat16,
    source_of,
    torch_dtypes,
    write_deferred,
)

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


# ------------------------------------------------------------------------------------------------ layout

CHUNK = struct.Struct("<8sq")
_NO_NAME = bytes(8)
_FIELDS = struct.Struct("<8s8sq")
# Unsigned: a negative dimension reads as one that no data fits.
_DIMS = [struct.Struct(f"<{ndim}Q") for ndim in range(MAX_NDIM + 1)]


# Everything before the data: the header chunk, its padding, the prefix of the data chunk.
_HEADS = [struct.Struct(f"<8sq8s8sq{ndim}q{-(24 + 8 * ndim) & 63}x8sq") for ndim in range(MAX_NDIM + 1)]
HEAD_NBYTES = [head.size for head in _HEADS]
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
