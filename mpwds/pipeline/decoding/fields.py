"""Which fields are decoded how: images, sound and video by extension, other formats by a table."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import pickle
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.lib import format as npy_format

from mpwds import tenbin
from mpwds.errors import DecodeError
from mpwds.imports import require
from mpwds.storage.streams.urls import refuse_in_secure_mode, without_credentials

Load: TypeAlias = Callable[[Any], Any]
"""A function of a field's bytes, or of a memoryview of them."""

MAX_DECOMPRESSED_BYTES = 512 << 20
"""Default limit on what a field may decompress to: a megabyte of gzip or zip can hold a gigabyte and more."""

pytorch_weights_only = os.environ.get("WDS_PYTORCH_WEIGHTS_ONLY", "0") == "1"
"""``torch_loads`` keeps to ``weights_only=True`` even with ``allow_pickle=True``."""

_SAFE_TORCH = (2, 6)  # before it, weights_only=True could be made to run code (CVE-2025-32434)
_NPY_START = npy_format.MAGIC_PREFIX
_LENGTH_BYTES = {(1, 0): 2, (2, 0): 4}
_HEADER_KEPT_BYTES = 512

_IMAGES = """
    apng avif avifs blp bmp bufr bw cur dcx dds dib emf eps fit fits flc fli ftc ftu gbr gif grib h5 hdf
    icb icns ico iim im j2c j2k jfif jp2 jpc jpe jpeg jpf jpg jpx mpeg mpg msp pbm pcd pcx pgm png pnm
    ppm ps psd pxr qoi ras rgb rgba sgi tga tif tiff vda vst webp wmf xbm xpm
"""
IMAGE_EXTENSIONS = frozenset(_IMAGES.split())
"""The extensions of the formats that Pillow reads."""
AUDIO_EXTENSIONS = frozenset(["flac", "mp3", "sox", "wav", "m4a", "ogg", "wma"])
"""The extensions of the fields that ``torch_audio`` decodes."""
VIDEO_EXTENSIONS = frozenset(["mp4", "ogv", "mjpeg", "avi", "mov", "h264", "mpg", "webm", "wmv"])
"""The extensions of the fields that ``torch_video`` decodes."""


def medium_of(extension: str) -> str:
    """``"video"``, ``"sound"`` or ``"image"``; empty for other extensions. An ``mpg`` is a video.

    Example:
        >>> medium_of("mpg"), medium_of("cls")
        ('video', '')
    """
    media = {"video": VIDEO_EXTENSIONS, "sound": AUDIO_EXTENSIONS, "image": IMAGE_EXTENSIONS}
    return next((medium for medium, extensions in media.items() if extension in extensions), "")


class FieldDecoder(ABC):
    """Base of this library's handlers that decode the fields with certain extensions."""

    extensions: Collection[str]

    def __call__(self, key: str, data: Any) -> Any:
        """Decodes a field of that name if its extension is one of ``extensions``; else returns ``None``."""
        return self.decode(data) if self.handles(key) else None

    def handles(self, key: str) -> bool:
        """True if a field of that name is decoded."""
        return extension_of(key) in self.extensions

    @abstractmethod
    def decode(self, data: Any) -> Any:
        """Decodes a field, whatever its name."""


def extension_of(key: str) -> str:
    """The last extension of a field's name, in lower case."""
    return key.rpartition(".")[2].lower()


def extension_set(extensions: Iterable[str]) -> frozenset[str]:
    """Extensions in lower case, from an iterable or one string with spaces."""
    names = extensions.split() if isinstance(extensions, str) else extensions
    return frozenset(name.lower() for name in names)


def decode_error(field: str, sample: Mapping[str, Any], url: Any, reason: str | Exception) -> DecodeError:
    """The error about a field of a sample of the shard ``url``, if it is of any."""
    if isinstance(reason, Exception) and not isinstance(reason, DecodeError):
        reason = f"{type(reason).__name__}: {reason}"
    key = sample.get("__key__")
    where = "" if key is None else f' of sample "{key}"'
    where += "" if url is None else f" in {without_credentials(str(url))}"
    return DecodeError(f'field "{field}"{where} cannot be decoded: {reason}', key=key, url=url, field=field)


@contextlib.contextmanager
def errors_as_decode_error(field: str, sample: Mapping[str, Any]) -> Iterator[None]:
    """Raises each error as a :func:`decode_error`, but an ``ImportError``, which concerns every sample."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:
        raise decode_error(field, sample, sample.get("__url__"), error) from error


def as_tensor(array: np.ndarray[Any, Any]) -> Any:
    """A tensor that shares an array's memory."""
    torch = require("torch", "tensors need torch: pip install torch, or decode to arrays")
    return torch.from_numpy(array)


def text_loads(data: Any) -> str:
    return str(data, "utf-8")


def json_loads(data: Any) -> Any:
    """Parses JSON in UTF-8, UTF-16 or UTF-32."""
    try:
        return json.loads(str(data, "utf-8"))
    except ValueError:  # another encoding, a byte order mark, or an error
        return json.loads(bytes(data))


def msgpack_loads(data: Any) -> Any:
    import msgpack

    return msgpack.unpackb(data, strict_map_key=False)


def cbor_loads(data: Any) -> Any:
    """Decodes a CBOR item; needs cbor2."""
    cbor2 = require("cbor2", "CBOR is decoded with cbor2: pip install 'mpwds[cbor]'")
    return cbor2.loads(data)


def npy_loads(data: Any, allow_pickle: bool = False) -> np.ndarray[Any, Any]:
    """Reads the array of an ``.npy`` file, bytes or a memoryview. It is writable and shares no memory.

    Raises:
        DecodeError: The array holds Python objects, and ``allow_pickle`` is false.
        ValueError: The data is not an ``.npy`` file, or is shorter than its header says.
    """
    start = bytes(data[:12])
    length_bytes = _LENGTH_BYTES.get((start[6], start[7])) if len(start) == 12 else None
    if length_bytes is None or not start.startswith(_NPY_START):
        return npy_format.read_array(io.BytesIO(data))  # the rare version 3.0, or an error
    begin = 8 + length_bytes + int.from_bytes(start[8 : 8 + length_bytes], "little")
    header = bytes(data[:begin])
    parse = _parsed if len(header) > _HEADER_KEPT_BYTES else _parsed_once
    try:
        shape, is_fortran, dtype = parse(header)
    except Exception as error:  # NumPy lets those of its tokenizer and parser through
        raise ValueError(f"its header is damaged: {error}") from error
    if dtype.hasobject:
        check_allowed("an array of Python objects", allow_pickle)
        return npy_format.read_array(io.BytesIO(data), allow_pickle=True)
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
    """Reads the arrays of an ``.npz`` file, by name; ``max_decompressed_bytes`` limits all of them together.

    Raises:
        DecodeError: An array holds Python objects, and ``allow_pickle`` is false; or they are too large.
        ValueError: The data is a single array.
        zipfile.BadZipFile: The data is damaged, or not an archive.
    """
    if bytes(data[:6]) == _NPY_START:
        raise ValueError("it holds one array as .npy, not an .npz archive of arrays: name the field npy")
    arrays: dict[str, Any] = unzip(data, max_decompressed_bytes)
    return {
        name.removesuffix(".npy"): npy_loads(file, allow_pickle) if file[:6] == _NPY_START else file
        for name, file in arrays.items()
    }


def _parsed(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    stream = io.BytesIO(header)
    if npy_format.read_magic(stream) == (1, 0):
        return npy_format.read_array_header_1_0(stream)
    return npy_format.read_array_header_2_0(stream)


_parsed_once = lru_cache(maxsize=256)(_parsed)


def check_allowed(what: str, allow_pickle: bool) -> None:
    """Raises ``DecodeError`` unless pickles are allowed, and ``SecurityError`` in secure mode in any case."""
    refuse_in_secure_mode(f"pickles may not be loaded (it is {what})")
    if not allow_pickle:
        raise DecodeError(
            f"it is {what}, and loading it would run the code that it holds; if you trust the author of the "
            "shard, pass allow_pickle=True to decode(); to leave the field alone, name the others with only="
        )


def unpickle_loads(data: Any, allow_pickle: bool = False) -> Any:
    """Unpickles, if ``allow_pickle`` permits it: the author of a pickle can run any code."""
    check_allowed("a pickle", allow_pickle)
    return pickle.loads(data)


def torch_loads(data: Any, allow_pickle: bool = False) -> Any:
    """Loads what ``torch.save`` stored, on the CPU: tensors in plain containers, and plain values.

    Args:
        data: The file's bytes, or a memoryview of them.
        allow_pickle: Also load objects of any class, by pickle: the author of the data can run any code.
            ``WDS_PYTORCH_WEIGHTS_ONLY=1`` in the environment overrules it.

    Raises:
        DecodeError: The data holds other objects and ``allow_pickle`` is false; or torch is older than 2.6,
            whose ``weights_only=True`` does not protect.
        SecurityError: ``WDS_SECURE=1``, which refuses all such data.

    Source:
        ``webdataset.autodecode.torch_loads``.

    Example:
        >>> import torch
        >>> stream = io.BytesIO()
        >>> torch.save({"a": torch.arange(2)}, stream)
        >>> torch_loads(stream.getvalue())
        {'a': tensor([0, 1])}
    """
    torch = require("torch", "pth files are decoded with torch: pip install torch")
    refuse_in_secure_mode("pickles may not be loaded (it is for torch.load)")
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _SAFE_TORCH:
        what = f"for torch.load, which is unsafe before torch 2.6 (this is {torch.__version__})"
        check_allowed(what, allow_pickle)
    weights_only = pytorch_weights_only or not allow_pickle
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=weights_only)
    except pickle.UnpicklingError:
        check_allowed("damaged, or a pickle of more than tensors and plain values", allow_pickle)
        raise


def pth_loads(data: Any, allow_pickle: bool = False) -> Any:
    """Loads a ``pth`` field for ``decode``, which counts any file of ``torch.save`` as a pickle."""
    check_allowed("a file of torch.save, which is a pickle", allow_pickle)
    return torch_loads(data, allow_pickle=True)


def gunzip(data: Any, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> bytes:
    """Decompresses gzip data of one member or several. Takes no more memory than ``max_bytes``.

    Raises ``DecodeError`` if it decompresses to more, ``EOFError`` or ``zlib.error`` if it is damaged.
    """
    pieces = []
    size = 0
    while data:
        member = zlib.decompressobj(wbits=31)
        pieces.append(member.decompress(data, max_bytes - size + 1))
        size += len(pieces[-1])
        if size > max_bytes:
            raise _too_large(max_bytes)
        if not member.eof:
            raise EOFError("the gzip data is truncated")
        data = member.unused_data.lstrip(b"\0")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def unzip(data: Any, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> dict[str, bytes]:
    """The files of a zip archive by name, stored or deflated. Takes no more memory than ``max_bytes``.

    Raises ``DecodeError`` if they are more, or compressed in another way, ``BadZipFile`` if it is damaged.
    """
    files = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > max_bytes:
            raise _too_large(max_bytes)
        for member in members:
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise DecodeError(f"{member.filename} in the zip archive is neither stored nor deflated")
            with archive.open(member) as file:
                files[member.filename] = file.read(member.file_size)  # `read()` trusts the compressed data
                file.read(1)  # at its end the checksum is compared
    return files


def _too_large(max_bytes: int) -> DecodeError:
    return DecodeError(
        f"it decompresses to more than the limit of {max_bytes} bytes; if you trust the author of the shard, "
        "raise the limit: decode(max_decompressed_bytes=...)"
    )


LOADS: dict[str, Load] = {
    **dict.fromkeys(("txt", "text", "transcript"), text_loads),
    **dict.fromkeys(("cls", "cls2", "id", "index", "inx"), int),
    **dict.fromkeys(("json", "jsn"), json_loads),
    **dict.fromkeys(("pyd", "pickle", "pkl"), unpickle_loads),
    "pth": pth_loads,
    "npy": npy_loads,
    "npz": npz_loads,
    **dict.fromkeys(("ten", "tenbin", "tb"), tenbin.decode_buffer),
    **dict.fromkeys(("mp", "msg", "msgpack"), msgpack_loads),
    "cbor": cbor_loads,
}
"""By extension, the functions that decode text, numbers, arrays and structures."""

LOAD_OPTIONS: dict[Load, tuple[str, ...]] = {
    unpickle_loads: ("allow_pickle",),
    pth_loads: ("allow_pickle",),
    npy_loads: ("allow_pickle",),
    npz_loads: ("allow_pickle", "max_decompressed_bytes"),
}
"""The options of ``decode`` that some of these functions take."""
