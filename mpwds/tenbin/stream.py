"""Arrays in tenbin encoding in streams and files.

``mpwds.tenbin`` describes the format and exports the public names.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO, Any

from mpwds.tenbin.array import CHUNK, MAGIC, Output, pack_fields, padded, parse_head, truncated, view_array
from mpwds.tenbin.kinds import MAX_NDIM, Array, describe
from mpwds.tenbin.lists import (
    Infos,
    check_bools,
    check_infos,
    checked_names,
    flat_bytes,
    result_of,
)


def write(stream: IO[bytes], arrays: Sequence[Array], infos: Sequence[str] | None = None) -> None:
    """Write arrays to a binary stream. Arguments and errors are those of ``encode_into``.

    Example:
        >>> import io
        >>> import numpy as np
        >>> stream = io.BytesIO()
        >>> write(stream, [np.arange(3)])
        >>> stream.tell()
        160
    """
    for array, name in zip(arrays, checked_names(arrays, infos), strict=True):
        kind, shape = describe(array)
        for payload in (memoryview(pack_fields(kind, name, shape)), flat_bytes(kind, shape, array)):
            _write_all(stream, memoryview(CHUNK.pack(MAGIC, payload.nbytes)))
            _write_all(stream, payload)
            _write_all(stream, memoryview(bytes(-payload.nbytes & 63)))


def read(stream: IO[bytes], n: int | None = None, infos: Infos = False, *, output: Output = "numpy") -> Any:
    """Read arrays from a binary stream into new, writable memory.

    Args:
        stream: Anything with ``read(size)``. It is read to the end of the ``n``-th array and no further.
        n: Arrays to read at most; ``None`` for all up to the stream's end.
        infos: As in ``decode_buffer``.
        output: As in ``decode_buffer``.

    Raises:
        TenbinError: As in ``decode_buffer``; its ``offset`` counts from where reading began.

    Example:
        >>> import io
        >>> import numpy as np
        >>> from mpwds import tenbin
        >>> read(io.BytesIO(tenbin.encode_buffer([np.arange(3), np.arange(2)])), n=1)
        [array([0, 1, 2])]
    """
    arrays: list[Any] = []
    names: list[str] = []
    position = 0
    while n is None or len(arrays) < n:
        head = _read_piecewise(stream, CHUNK.size)
        if not head:
            break
        if len(head) == CHUNK.size:
            # The parser refuses other bytes; the bound keeps a false length from being read here.
            length = min(max(CHUNK.unpack(head)[1], 0), 24 + 8 * MAX_NDIM)
            head += _read_piecewise(stream, padded(length) + CHUNK.size)
        header = parse_head(head, 0, len(head), position)
        data = _read_piecewise(stream, header.end - header.data_offset)
        if len(data) < header.end - header.data_offset:
            raise truncated(position + header.data_offset, header.nbytes, len(data))
        header = header._replace(data_offset=0, end=len(data))
        check_bools(data, header, position + len(head))
        arrays.append(view_array(data, header, output))
        names.append(header.name)
        position += len(head) + len(data)
    check_infos(names, infos)
    return result_of(arrays, names, infos)


def save(
    path: str | os.PathLike[str],
    *arrays: Array,
    infos: Sequence[str] | None = None,
    nocheck: bool = False,
) -> None:
    """Write arrays to a ``.ten`` file.

    Args:
        path: The file's name, ending in ``.ten``.
        arrays: As in ``encode_into``. A file that exists already is left alone if one cannot be encoded.
        infos: As in ``encode_into``.
        nocheck: Accept other file names.

    Raises:
        ValueError: The name does not end in ``.ten``.
        TenbinError: As in ``encode_into``.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(f"{folder}/x.ten", np.arange(3), infos=["ids"])
        ...     load(f"{folder}/x.ten", infos=True)
        ([array([0, 1, 2])], ['ids'])
    """
    _check_path(path, nocheck)
    checked_names(arrays, infos)
    with open(path, "wb") as stream:
        write(stream, arrays, infos)


def load(
    path: str | os.PathLike[str], infos: Infos = False, nocheck: bool = False, *, output: Output = "numpy"
) -> Any:
    """Read all arrays of a ``.ten`` file.

    Args:
        path: The file's name, ending in ``.ten``.
        infos: As in ``decode_buffer``.
        nocheck: Accept other file names.
        output: As in ``decode_buffer``.

    Raises:
        ValueError: The name does not end in ``.ten``.
        TenbinError: As in ``decode_buffer``.

    Example:
        >>> load("x.npy")
        Traceback (most recent call last):
        ...
        ValueError: file name 'x.npy' should end in .ten: rename it or pass nocheck=True
    """
    _check_path(path, nocheck)
    with open(path, "rb") as stream:
        return read(stream, infos=infos, output=output)


def _write_all(stream: IO[bytes], data: memoryview) -> None:
    while data.nbytes:
        written = stream.write(data)
        if written is None or written >= data.nbytes:
            return
        data = data[written:]  # raw streams may write less than they get


def _read_piecewise(stream: IO[bytes], nbytes: int) -> bytearray:
    """Read ``nbytes`` or up to the end, in pieces: a false length costs no memory."""
    data = bytearray()
    while len(data) < nbytes:
        piece = stream.read(min(nbytes - len(data), 1 << 20))
        if not piece:
            break
        data += piece
    return data


def _check_path(path: str | os.PathLike[str], nocheck: bool) -> None:
    if not nocheck and not os.fspath(path).endswith(".ten"):
        raise ValueError(f"file name {os.fspath(path)!r} should end in .ten: rename it or pass nocheck=True")
