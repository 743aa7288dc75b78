"""Read arrays in NumPy's file formats from memory."""

from __future__ import annotations

import io
import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from mpwds.pipeline.decoding.decompress import MAX_DECOMPRESSED_BYTES, unzip
from mpwds.pipeline.decoding.pickles import check_allowed

_LENGTH_BYTES = {(1, 0): 2, (2, 0): 4}
_HEADER_KEPT_BYTES = 512


def npy_loads(data: Any, allow_pickle: bool = False) -> np.ndarray[Any, Any]:
    """The array of an ``.npy`` file. It is writable and shares no memory with the data.

    Args:
        data: The file's bytes, or a memoryview of them.
        allow_pickle: Unpickle arrays of Python objects.

    Raises:
        DecodeError: The array holds Python objects, and unpickling is not allowed.
        ValueError: The data is no ``.npy`` file, or is shorter than its header says.

    Example:
        >>> stream = io.BytesIO()
        >>> np.save(stream, np.arange(3))
        >>> npy_loads(stream.getvalue())
        array([0, 1, 2])
    """
    start = bytes(data[:12])
    length_bytes = _LENGTH_BYTES.get((start[6], start[7])) if len(start) == 12 else None
    if length_bytes is None or not start.startswith(npy_format.MAGIC_PREFIX):
        return _read_array(data)  # the rare version 3.0, or an error
    begin = 8 + length_bytes + int.from_bytes(start[8 : 8 + length_bytes], "little")
    header = bytes(data[:begin])
    parse = _parsed if len(header) > _HEADER_KEPT_BYTES else _parsed_once
    try:
        shape, is_fortran, dtype = parse(header)
    except Exception as error:  # NumPy lets those of its tokenizer and parser through
        raise ValueError(f"its header is damaged: {error}") from error
    if dtype.hasobject:
        check_allowed("an array of Python objects", allow_pickle)
        return _read_array(data, allow_pickle=True)
    size, there = math.prod(shape) * dtype.itemsize, len(data) - begin
    if size > there:
        raise ValueError(f"an array of shape {shape} and type {dtype} takes {size} bytes, {there} are there")
    if not size:
        return np.zeros(shape, dtype)
    flat = np.frombuffer(data, dtype, math.prod(shape), begin)
    view = flat.reshape(shape[::-1]).T if is_fortran else flat.reshape(shape)
    array: np.ndarray[Any, Any] = view.copy(order="K")
    return array


def npz_loads(
    data: Any, allow_pickle: bool = False, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
) -> dict[str, Any]:
    """The arrays of an ``.npz`` file by name.

    Args:
        data: The file's bytes, or a memoryview of them.
        allow_pickle: Unpickle arrays of Python objects.
        max_decompressed_bytes: The most that the arrays may take together.

    Raises:
        DecodeError: An array holds Python objects, and unpickling is not allowed; or the arrays are larger
            than ``max_decompressed_bytes``.
        ValueError: The data is a single array.
        zipfile.BadZipFile: The data is damaged, or something else.

    Example:
        >>> stream = io.BytesIO()
        >>> np.savez(stream, a=np.arange(2))
        >>> npz_loads(stream.getvalue())
        {'a': array([0, 1])}
    """
    if bytes(data[:6]) == npy_format.MAGIC_PREFIX:
        raise ValueError("it holds one array as .npy, not an .npz archive of arrays: name the field npy")
    members = unzip(data, max_decompressed_bytes)
    return {
        name.removesuffix(".npy"): npy_loads(member, allow_pickle)
        if member.startswith(npy_format.MAGIC_PREFIX)
        else member
        for name, member in members.items()
    }


def _read_array(data: Any, allow_pickle: bool = False) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = npy_format.read_array(io.BytesIO(data), allow_pickle=allow_pickle)
    return array


def _parsed(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    stream = io.BytesIO(header)
    if npy_format.read_magic(stream) == (1, 0):
        return npy_format.read_array_header_1_0(stream)
    return npy_format.read_array_header_2_0(stream)


_parsed_once = lru_cache(maxsize=256)(_parsed)
