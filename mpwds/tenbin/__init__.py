"""Arrays to bytes and back, in the tenbin format of webdataset and tensorcom.

An array is two chunks, one header and one data. A chunk is ``~TenBin~``, the payload's length as an
int64, and the payload, padded with zeros to a multiple of 64 bytes. A header's payload is the dtype's
code (8 ASCII bytes), the array's name (8 ASCII bytes), the number of dimensions and each dimension
(int64). Everything is little-endian. Chunks follow each other without gaps.

The codes ``f2 f4 f8 i1 i2 i4 i8 u1 u2 u8`` are understood by webdataset and tensorcom; ``u4`` (which
they misspell), ``b1`` (bool), ``bf2`` (bfloat16), ``c8`` and ``c16`` (complex) by mpwds only.

A decoder compares every length with the bytes that it has. Whatever the input, it yields arrays or raises
``TenbinError``, and allocates no more than the input holds.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mpwds.errors import TenbinError
from mpwds.tenbin.array import (
    CHUNK,
    MAGIC,
    Array,
    ArrayHeader,
    Buffer,
    Deferred,
    Kind,
    Output,
    array_nbytes,
    damaged,
    data_offset,
    describe,
    holds,
    ml_bfloat16,
    name_bytes,
    pack_fields,
    parse_array,
    parse_fields,
    source_of,
    view_array,
    write_array,
    write_deferred,
)

if TYPE_CHECKING:
    import zmq

__all__ = [
    "Array",
    "ArrayHeader",
    "Buffer",
    "Deferred",
    "Infos",
    "Output",
    "array_nbytes",
    "check_acceptable_input_type",
    "data_offset",
    "decode_buffer",
    "decode_header",
    "decode_list",
    "encode_buffer",
    "encode_header",
    "encode_into",
    "encode_list",
    "encoded_nbytes",
    "holds",
    "load",
    "parse_array",
    "read",
    "save",
    "sctp_recv",
    "sctp_send",
    "str64",
    "unstr64",
    "view_array",
    "write",
    "write_array",
    "zrecv_multipart",
    "zrecv_single",
    "zsend_multipart",
    "zsend_single",
]

Infos: TypeAlias = bool | Sequence[str] | None

_CODES64 = {"f8", "i8", "u8", "c16"}
_PIECE_NBYTES = 1 << 20


def encoded_nbytes(arrays: Sequence[Array]) -> int:
    """Bytes that arrays, tensors or ``Deferred`` arrays take when encoded.

    Raises:
        TenbinError: One of them cannot be encoded.

    Example:
        >>> encoded_nbytes([np.zeros(3, "float32"), np.zeros(0, "uint8")])
        256
    """
    return sum(map(array_nbytes, _list_of_arrays(arrays)))


def encode_into(
    buffer: Buffer, arrays: Sequence[Array], infos: Sequence[str] | None = None, *, allow64: bool = True
) -> int:
    """Encode arrays at the start of an existing buffer, shared memory for instance.

    Each array's data is copied once. Nothing is written unless everything fits.

    Args:
        buffer: Any writable, C-contiguous buffer of at least ``encoded_nbytes(arrays)`` bytes.
        arrays: Arrays of any strides and byte order, dense CPU tensors, or ``Deferred`` ones.
        infos: A name of up to 8 ASCII characters for each array; ``None`` for no names.
        allow64: Accept float64, int64, uint64 and complex128.

    Returns:
        Bytes written.

    Raises:
        TenbinError: An array cannot be encoded, a name is invalid, names and arrays differ in number, or the
            buffer is read-only or too small.

    Example:
        >>> buffer = bytearray(1000)
        >>> encode_into(buffer, [np.arange(3)], ["ids"])
        160
        >>> decode_buffer(buffer[:160], infos=True)
        ([array([0, 1, 2])], ['ids'])
    """
    names = _names_of(arrays, infos, allow64)
    total = encoded_nbytes(arrays)
    view = _view(buffer)
    if view.readonly:
        raise TenbinError("cannot encode into a read-only buffer: pass a bytearray or other writable memory")
    if total > view.nbytes:
        raise TenbinError(f"the arrays take {total} bytes encoded and the buffer has {view.nbytes}")
    end = 0
    for array, name in zip(arrays, names, strict=True):
        end = write_array(view, end, array, name)
    return end


def encode_buffer(
    arrays: Sequence[Array], infos: Sequence[str] | None = None, *, allow64: bool = True
) -> bytearray:
    """Encode arrays into new memory. Arguments and errors are those of ``encode_into``."""
    buffer = bytearray(encoded_nbytes(arrays))
    encode_into(buffer, arrays, infos, allow64=allow64)
    return buffer


def decode_buffer(buffer: Buffer, infos: Infos = False, *, output: Output = "numpy") -> Any:
    """Decode all arrays of a buffer without copying them.

    The arrays are views: they keep the buffer alive and are writable if it is. Only tensors of a read-only
    buffer are copies, because torch has no read-only tensors.

    Args:
        buffer: Any C-contiguous buffer.
        infos: ``False`` or ``None`` for the arrays alone, ``True`` for ``(arrays, names)``; a list or tuple
            of the names that the arrays must have, in this order.
        output: ``"numpy"`` or ``"torch"``. NumPy arrays of bfloat16 need ``mpwds[bfloat16]``.

    Returns:
        A list of arrays or tensors, or ``(arrays, names)`` for ``infos=True``.

    Raises:
        TenbinError: The bytes are not tenbin, damaged or truncated, or the names differ from those required;
            ``offset`` tells where.
        ImportError: The package that the output needs is not installed.

    Example:
        >>> decode_buffer(encode_buffer([np.array(True), np.arange(2)]), output="torch")
        [tensor(True), tensor([0, 1])]
    """
    view = _view(buffer)
    if output == "torch" and view.readonly:
        view = memoryview(bytearray(view))
    arrays: list[Any] = []
    names: list[str] = []
    offset = 0
    while offset < view.nbytes:
        header = parse_array(view, offset)
        _check_bools(view, header)
        arrays.append(view_array(view, header, output))
        names.append(header.name)
        offset = header.end
    return _result(arrays, names, infos)


def encode_list(arrays: Sequence[Array], infos: Sequence[str] | None = None) -> list[memoryview]:
    """Encode arrays as frames ``[header, data, header, data, ...]``, for multipart messages.

    Data frames are views of arrays that are contiguous, little-endian and in memory. Arguments and errors are
    those of ``encode_into``.

    Example:
        >>> [frame.nbytes for frame in encode_list([np.zeros((2, 3), "uint8")])]
        [40, 6]
    """
    frames = []
    for array, name in zip(arrays, _names_of(arrays, infos), strict=True):
        frames += [memoryview(encode_header(array, name)), _data_of(*describe(array), array)]
    return frames


def encode_header(a: Array, info: str = "") -> bytes:
    """The header frame of an array with a name. Errors are those of ``encode_into``.

    Example:
        >>> decode_header(encode_header(np.zeros((2, 3), "uint8"), "images"))
        ((2, 3), dtype('uint8'), 'images')
    """
    kind, shape = describe(a)
    return pack_fields(kind, info, shape)


def decode_header(h: Buffer) -> tuple[tuple[int, ...], np.dtype[Any], str]:
    """Shape, dtype and name that a header frame says. Raises ``TenbinError`` if it is invalid."""
    view = _view(h)
    kind, name, shape, _ = parse_fields(view, 0, view.nbytes)
    return shape, ml_bfloat16() if kind.dtype is None else kind.dtype, name


def str64(s: str) -> int:
    """A name of up to 8 ASCII characters as the integer that headers hold.

    Example:
        >>> str64("f4"), unstr64(str64("images"))
        (13414, 'images')
    """
    return int.from_bytes(name_bytes(s), "little")


def unstr64(i: int) -> str:
    """The name that an integer stands for: see ``str64``."""
    return int(i).to_bytes(8, "little").decode("ascii").strip("\0")


def decode_list(frames: Sequence[Buffer], infos: Infos = False, *, output: Output = "numpy") -> Any:
    """Decode frames of ``encode_list``, webdataset or tensorcom without copying them.

    Args:
        frames: Alternating header and data frames; any C-contiguous buffers.
        infos: As in ``decode_buffer``, like ``output`` and the result.

    Raises:
        TenbinError: A frame is invalid; its ``offset`` counts within that frame.
    """
    if len(frames) % 2:
        raise TenbinError(
            f"{len(frames)} frames, expected a header and a data frame for each array: one is missing"
        )
    arrays: list[Any] = []
    names: list[str] = []
    for index in range(0, len(frames), 2):
        head, data = _view(frames[index]), _view(frames[index + 1])
        kind, name, shape, nbytes = parse_fields(head, 0, head.nbytes)
        if data.nbytes != nbytes:
            raise TenbinError(
                f"frame {index + 1} has {data.nbytes} bytes, but its header says {kind.name} of shape "
                f"{shape}, which takes {nbytes}",
                0,
            )
        header = ArrayHeader(kind.code, name, shape, 0, nbytes, nbytes)
        _check_bools(data, header)
        arrays.append(view_array(data, header, output))
        names.append(name)
    return _result(arrays, names, infos)


def write(stream: IO[bytes], arrays: Sequence[Array], infos: Sequence[str] | None = None) -> None:
    """Write arrays to a binary stream. Arguments and errors are those of ``encode_into``."""
    for array, name in zip(arrays, _names_of(arrays, infos), strict=True):
        data = memoryview(encode_buffer([array], [name]))
        while data:
            # A raw stream may write less than it gets.
            written = stream.write(data)
            data = data[len(data) if written is None else written :]


def read(stream: IO[bytes], n: int | None = None, infos: Infos = False, *, output: Output = "numpy") -> Any:
    """Read arrays from a binary stream into new, writable memory.

    Args:
        stream: Anything with ``read(size)``. It is read to the end of the ``n``-th array and no further.
        n: Arrays to read at most; ``None`` for all up to the stream's end.
        infos: As in ``decode_buffer``, like ``output``, the result and the errors. A ``TenbinError``'s
            ``offset`` counts from where reading began.

    Example:
        >>> import io
        >>> read(io.BytesIO(encode_buffer([np.arange(3), np.arange(2)])), n=1)
        [array([0, 1, 2])]
    """
    data = bytearray()
    chunks = 0
    while n is None or chunks < 2 * n:
        start = len(data)
        if _read_more(stream, CHUNK.size, data) < CHUNK.size:
            break
        magic, length = CHUNK.unpack_from(data, start)
        if magic != MAGIC:  # decode_buffer tells; the length might be that of the whole stream
            break
        _read_more(stream, length + 63 & -64, data)
        chunks += 1
    return decode_buffer(data, infos, output=output)


def save(
    path: str | os.PathLike[str], *arrays: Array, infos: Sequence[str] | None = None, nocheck: bool = False
) -> None:
    """Write arrays to a ``.ten`` file.

    Args:
        path: The file's name, ending in ``.ten``. The file is left alone if an array cannot be encoded.
        arrays: As in ``encode_into``, like ``infos`` and the errors.
        nocheck: Accept other file names.

    Raises:
        ValueError: The name does not end in ``.ten``.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(f"{folder}/x.ten", np.arange(3), infos=["ids"])
        ...     load(f"{folder}/x.ten", infos=True)
        ([array([0, 1, 2])], ['ids'])
    """
    _check_path(path, nocheck)
    _names_of(arrays, infos)
    with open(path, "wb") as stream:
        write(stream, arrays, infos)


def load(
    path: str | os.PathLike[str], infos: Infos = False, nocheck: bool = False, *, output: Output = "numpy"
) -> Any:
    """Read all arrays of a ``.ten`` file, or with ``nocheck`` of one of any name: see ``save``.

    Other arguments, result and errors are those of ``decode_buffer``.
    """
    _check_path(path, nocheck)
    with open(path, "rb") as stream:
        return read(stream, infos=infos, output=output)


def zsend_single(
    socket: zmq.Socket[Any], arrays: Sequence[Array], infos: Sequence[str] | None = None
) -> None:
    """Send arrays as one ZMQ frame. Arguments and errors are those of ``encode_into``."""
    socket.send(encode_buffer(arrays, infos))


def zrecv_single(socket: zmq.Socket[Any], infos: Infos = False, *, output: Output = "numpy") -> Any:
    """Receive what ``zsend_single`` sent, as views of the message. As ``decode_buffer`` otherwise."""
    return decode_buffer(socket.recv(copy=False).buffer, infos, output=output)


def zsend_multipart(
    socket: zmq.Socket[Any], arrays: Sequence[Array], infos: Sequence[str] | None = None
) -> None:
    """Send one array or more as frames of one ZMQ message, as tensorcom does by default."""
    frames = encode_list(arrays, infos)
    if not frames:
        raise TenbinError("a multipart message needs at least one array")
    socket.send_multipart(frames)


def zrecv_multipart(socket: zmq.Socket[Any], infos: Infos = False, *, output: Output = "numpy") -> Any:
    """Receive what ``zsend_multipart`` or tensorcom sent, as views of the message's frames."""
    frames = [frame.buffer for frame in socket.recv_multipart(copy=False)]
    return decode_list(frames, infos, output=output)


def sctp_send(socket: Any, dest: Any, l: Sequence[Array], infos: Sequence[str] | None = None) -> None:  # noqa: E741  # webdataset's name
    """Send arrays as one SCTP message to the address ``dest``.

    ``socket`` is Python's, ``socket.socket(family, kind, socket.IPPROTO_SCTP)``, or one of the package
    ``pysctp``. Platforms without SCTP refuse to make such a socket.

    Raises:
        TenbinError: An array cannot be encoded.
        OSError: Nobody accepts at ``dest``, or the message is larger than the socket's send buffer.
    """
    data = bytes(encode_buffer(l, infos))
    if hasattr(socket, "sctp_send"):
        socket.sctp_send(data, to=dest)
    else:
        socket.sendto(data, dest)


def sctp_recv(
    socket: Any, infos: Infos = False, maxsize: int = 100_000_000, *, output: Output = "numpy"
) -> Any:
    """Accept a connection, receive one message that ``sctp_send`` sent, and close the connection.

    Args:
        socket: A listening socket, of a kind that ``sctp_send`` takes.
        infos: As in ``decode_buffer``, like ``output`` and the result.
        maxsize: The most bytes to accept.

    Raises:
        TenbinError: The message is larger, or not tenbin.
    """
    connection, _ = socket.accept()
    with contextlib.closing(connection):
        if hasattr(connection, "sctp_recv"):
            _, _, data, _ = connection.sctp_recv(maxsize + 1)
        else:
            data = _message(connection, maxsize + 1)
    if len(data) > maxsize:
        raise TenbinError(f"an SCTP message has more than maxsize={maxsize} bytes")
    return decode_buffer(data, infos, output=output)


def _message(connection: Any, maxsize: int) -> bytes:
    """The next message of a socket that keeps messages apart; it may arrive in pieces."""
    from socket import MSG_EOR

    data, flags = b"", 0
    while not flags & MSG_EOR and len(data) < maxsize:
        piece, _, flags, _ = connection.recvmsg(maxsize - len(data))
        if not piece:
            break
        data += piece
    return data


def check_acceptable_input_type(arrays: Sequence[Array], allow64: bool) -> None:
    """Check that tenbin can hold the arrays; ``allow64`` accepts float64, int64, uint64 and complex128.

    Raises:
        TenbinError: An array cannot be encoded, or is of a 64-bit type where these are not allowed.
    """
    for index, array in enumerate(_list_of_arrays(arrays)):
        kind, _ = describe(array)
        if not allow64 and kind.code in _CODES64:
            raise TenbinError(f"array {index} is {kind.name}, and 64-bit types need allow64=True")


def _list_of_arrays(arrays: Sequence[Array]) -> Sequence[Array]:
    if not isinstance(arrays, list | tuple):
        raise TenbinError(f"expected a list or tuple of arrays, got {type(arrays).__qualname__}")
    return arrays


def _names_of(arrays: Sequence[Array], infos: Sequence[str] | None, allow64: bool = True) -> Sequence[str]:
    """A name for each array; checks both."""
    check_acceptable_input_type(arrays, allow64)
    if infos is None:
        return [""] * len(arrays)
    if not isinstance(infos, list | tuple):
        raise TenbinError(f"infos must be a list of names, got {type(infos).__qualname__}")
    if len(infos) != len(arrays):
        raise TenbinError(f"{len(infos)} names for {len(arrays)} arrays: infos must have one for each")
    for name in infos:
        name_bytes(name)
    return infos


def _result(arrays: list[Any], names: list[str], infos: Infos) -> Any:
    if infos is None or isinstance(infos, bool):
        return (arrays, names) if infos else arrays
    if not isinstance(infos, list | tuple):
        raise TenbinError(f"infos must be a bool or a list of names, got {type(infos).__qualname__}")
    if list(infos) != names:
        raise TenbinError(f"arrays are named {names}, required are {list(infos)}")
    return arrays


def _check_bools(buffer: Buffer, header: ArrayHeader) -> None:
    """Refuse bools other than 0 and 1, for which NumPy and torch define nothing."""
    if header.code == "b1" and header.nbytes:
        data = np.frombuffer(buffer, np.uint8, header.nbytes, header.data_offset)
        if data.max() > 1:
            index = int(np.argmax(data > 1))
            raise damaged(header.data_offset + index, f"a bool of value {data[index]}")


def _data_of(kind: Kind, shape: tuple[int, ...], array: Array) -> memoryview:
    """The array's data as it goes over the wire; a view of it where that is possible."""
    source = source_of(kind, array)
    if type(source) is np.ndarray:
        data = np.ascontiguousarray(source, kind.raw)
    else:
        data = np.empty(shape, kind.raw)
        if data.nbytes:
            write_deferred(kind, source, data)
    flat: Buffer = data.reshape(-1).view(np.uint8)
    return memoryview(flat)


def _view(buffer: Buffer) -> memoryview:
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise TenbinError("the buffer is not C-contiguous: pass a contiguous copy of it")
    return view


def _read_more(stream: IO[bytes], nbytes: int, data: bytearray) -> int:
    """Append ``nbytes`` of a stream, or all that are left. In pieces: a false length costs no memory."""
    left = nbytes
    while left > 0 and (piece := stream.read(min(left, _PIECE_NBYTES))):
        data += piece
        left -= len(piece)
    return nbytes - left


def _check_path(path: str | os.PathLike[str], nocheck: bool) -> None:
    if not nocheck and not os.fspath(path).endswith(".ten"):
        raise ValueError(f"file name {os.fspath(path)!r} should end in .ten: rename it or pass nocheck=True")
