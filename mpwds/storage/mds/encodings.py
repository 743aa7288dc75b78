"""Encodings of MDS version 2: a column's values to bytes and back."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Encoding:
    """The conversion of a column's values to bytes, and back. Bytes are stored as they are."""

    name: str  # as in an index: "int", "ndarray:float32:3,4"
    size: int | None  # bytes that every value has; None if they differ
    to_bytes: Callable[[Any], bytes]  # raises ValueError or TypeError for values that it does not take
    decode: Callable[[bytes], Any]  # raises some exception for bytes without a value

    def encode(self, value: Any) -> bytes:
        """The bytes of a value."""
        return value if isinstance(value, bytes) else self.to_bytes(value)


@functools.lru_cache(maxsize=256)  # an index names those of its columns again for each shard
def encoding(name: str, allow_pickle: bool = False) -> Encoding:
    """The encoding of a name as in an index.

    Bytes are what is stored, whatever the encoding: a JPEG file's go into a column ``"jpeg"`` as they are.

    Args:
        name: One of these:

            ===================================== ============================================================
            ``bytes str int json``                64 bits for ``int``
            ``uint8`` ... ``float64``             a NumPy scalar
            ``str_int str_float str_decimal``     of any size, as decimal digits
            ``ndarray``                           ``ndarray:float32`` fixes the type, ``ndarray:float32:3,4``
                                                  the shape too
            ``jpeg png``                          a PIL image
            ``pil``                               a PIL image, not compressed
            ``list[jpeg] list[png] list[pil]``    a list of them
            ``jpeg_array``                        PIL images, made of a list of JPEG files' bytes
            ``pkl``                               a pickle
            ===================================== ============================================================
        allow_pickle: Whether ``pkl`` is allowed. Whoever made the data can then run code here.

    Raises:
        ValueError: There is no such encoding, or it is ``pkl``, and that is not allowed.

    Source:
        ``streaming.base.format.mds.encodings``.

    Example:
        >>> encoding("ndarray:uint8").encode(np.zeros((2, 3), np.uint8))
        b'\\x08\\x02\\x03\\x00\\x00\\x00\\x00\\x00\\x00'
    """
    kind, _, details = name.partition(":")
    if kind == "ndarray":
        return _ndarray(name, details)
    if name == "pkl" and not allow_pickle:
        raise ValueError(
            "reading pickles runs code that they hold: pass allow_pickle=True if you trust their origin"
        )
    if name not in ENCODINGS:
        raise ValueError(
            f"there is no encoding {name!r}: choose one of {', '.join(ENCODINGS)}, ndarray, ndarray:TYPE or "
            "ndarray:TYPE:SHAPE (ndarray:float32:3,4)"
        )
    found = ENCODINGS[name]
    if isinstance(found, Encoding):
        return found
    own = found()
    return Encoding(name, own.size, own.encode, own.decode)


class _Encodings(dict[str, Any]):
    """Encodings by name. A program's own are classes with ``size``, ``encode`` and ``decode``."""

    def __setitem__(self, name: str, made: Any) -> None:
        super().__setitem__(name, made)
        encoding.cache_clear()


def _encoding(
    name: str,
    kind: type | tuple[type, ...],
    encode: Callable[[Any], bytes],
    decode: Callable[[bytes], Any],
    size: int | None = None,
) -> Encoding:
    def checked(value: Any) -> bytes:
        if not isinstance(value, kind):
            names = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
            raise TypeError(f"{name} takes {names} or bytes, got {type(value).__name__}")
        return encode(value)

    return Encoding(name, size, checked, decode)


def _scalar(name: str) -> Encoding:
    dtype = np.dtype(name).newbyteorder("<")
    return Encoding(
        name,
        dtype.itemsize,
        lambda value: np.asarray(dtype.type(value), dtype).tobytes(),
        lambda data: np.frombuffer(data, dtype)[0],
    )


_INT = struct.Struct("<q")


def _encode_int(value: int) -> bytes:
    try:
        return _INT.pack(value)
    except struct.error as error:
        raise ValueError(f"int takes 64 bits, got {value}: str_int takes more") from error


def _encode_json(value: Any) -> bytes:
    return json.dumps(value.tolist() if isinstance(value, np.ndarray) else value).encode()


# The types of scalars and arrays, by the byte that names each: its bits, and 1 for signed, 2 for float.
_TYPES = {
    8 * dtype.itemsize + "uif".index(dtype.kind): dtype
    for dtype in map(np.dtype, ("u1", "i1", "<u2", "<i2", "<f2", "<u4", "<i4", "<f4", "<u8", "<i8", "<f8"))
}
_TYPE_CODES = {dtype.name: code for code, dtype in _TYPES.items()}
_SHAPE_TYPES = [np.dtype(name) for name in ("u1", "<u2", "<u4", "<u8")]
_MOST_AXES = 63


def _ndarray(name: str, details: str) -> Encoding:
    """The encoding of arrays: [type] [axes and width of an axis's length, lengths] values.

    A type or shape that ``details`` states is not stored.
    """
    type_name, _, shape_text = details.partition(":")
    if details and type_name not in _TYPE_CODES:
        raise ValueError(f"{name!r} has an unknown type: choose one of {', '.join(_TYPE_CODES)}")
    fixed_code = _TYPE_CODES[type_name] if details else None
    shape: tuple[int, ...] | None = None
    if ":" in details:
        axes = shape_text.split(",")
        if not all(axis.isascii() and axis.isdigit() and int(axis) for axis in axes):
            raise ValueError(f"{name!r} has an invalid shape: write lengths above zero, ndarray:float32:3,4")
        shape = tuple(map(int, axes))

    def encode(value: Any) -> bytes:
        if not isinstance(value, np.ndarray):
            raise TypeError(f"{name} takes a numpy.ndarray or bytes, got {type(value).__name__}")
        code = _TYPE_CODES.get(value.dtype.name)
        if code is None or fixed_code not in (None, code):
            raise TypeError(f"{name} does not take arrays of {value.dtype.name}")
        if shape not in (None, value.shape):
            raise ValueError(f"{name} does not take arrays of shape {value.shape}")
        head = b"" if fixed_code is not None else bytes([code])
        if shape is None:
            head += _encode_shape(value.shape)
        return head + value.astype(_TYPES[code], copy=False).tobytes()

    def decode(data: bytes) -> Any:
        at = 0
        code = fixed_code
        if code is None:
            code, at = data[0], 1
        if code not in _TYPES:
            raise ValueError(f"type {code} of an array is unknown")
        decoded_shape = shape
        if decoded_shape is None:
            axes, width = data[at] >> 2, data[at] & 3
            lengths = np.frombuffer(data, _SHAPE_TYPES[width], axes, at + 1)
            at += 1 + lengths.nbytes
            decoded_shape = tuple(lengths.tolist())
        dtype = _TYPES[code]
        if len(data) - at != math.prod(decoded_shape) * dtype.itemsize:
            raise ValueError(
                f"an array of {dtype} and shape {decoded_shape} does not have {len(data) - at} bytes"
            )
        return np.frombuffer(data, dtype, offset=at).reshape(decoded_shape)

    fixed = None if shape is None or fixed_code is None else math.prod(shape) * _TYPES[fixed_code].itemsize
    return Encoding(name, fixed, encode, decode)


def _encode_shape(shape: tuple[int, ...]) -> bytes:
    if not shape or not all(shape) or len(shape) > _MOST_AXES:
        raise ValueError(
            f"ndarray takes arrays of 1 to {_MOST_AXES} axes, none of length 0, got one of shape {shape}"
        )
    width = next(width for width in range(4) if max(shape) < 1 << (8 << width))
    return bytes([len(shape) << 2 | width]) + np.array(shape, _SHAPE_TYPES[width]).tobytes()


# Others may run programs (EPS) or are read by plugins that few need.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")

_RAW_HEAD = struct.Struct("<3I")  # width, height, bytes of the mode's name
_BYTES_A_PIXEL = {
    **dict.fromkeys(("L", "P"), 1),
    **dict.fromkeys(("LA", "La", "PA", "I;16", "I;16L", "I;16B", "I;16N"), 2),
    **dict.fromkeys(("RGB", "YCbCr", "LAB", "HSV"), 3),
    **dict.fromkeys(("RGBA", "RGBa", "RGBX", "CMYK", "I", "F"), 4),
}


def _encode_raw(image: Image) -> bytes:
    """Size, mode and pixels. A palette is not kept."""
    _check(image)
    mode = image.mode.encode()
    return _RAW_HEAD.pack(*image.size, len(mode)) + mode + image.tobytes()


def _decode_raw(data: bytes) -> Image:
    """The image of ``_encode_raw``'s bytes; a ``ValueError`` if they are none."""
    from PIL import Image

    width, height, mode_bytes = _RAW_HEAD.unpack_from(data)
    start = _RAW_HEAD.size + mode_bytes
    mode = data[_RAW_HEAD.size : start].decode()
    row = (width + 7) // 8 if mode == "1" else width * _BYTES_A_PIXEL.get(mode, 0)
    if not row * height or len(data) - start != row * height:
        raise ValueError(f"{width} x {height} pixels of mode {mode!r} do not have {len(data) - start} bytes")
    return Image.frombytes(mode, (width, height), data[start:])


def _encode_jpeg(image: Image) -> bytes:
    """The image as a JPEG file: if it comes from one, that file's own bytes."""
    _check(image)
    from PIL.ImageFile import ImageFile

    if isinstance(image, ImageFile) and image.filename and image.format in ("JPEG", "MPO"):
        with contextlib.suppress(FileNotFoundError), open(image.filename, "rb") as file:
            data = file.read()
            if image.tile or _decode_file(data) == image:  # else it was changed in memory
                return data
    return _encode_as("JPEG", image)


def _encode_as(format: str, image: Image) -> bytes:
    _check(image)
    stream = io.BytesIO()
    image.save(stream, format=format)
    return stream.getvalue()


def _decode_file(data: bytes) -> Image:
    """The image of a file's bytes, read completely."""
    from PIL import Image

    image = Image.open(io.BytesIO(data), formats=_FORMATS)
    image.load()
    return image


def _list(
    name: str,
    kind: type | tuple[type, ...],
    head: bytes,
    encode: Callable[[Any], bytes],
    decode: Callable[[bytes], Any],
) -> Encoding:
    """The encoding of lists: ``head``, number and sizes of the elements, the elements."""

    def encode_all(elements: list[Any]) -> bytes:
        encoded = list(map(encode, elements))
        sizes = struct.pack(f"<{1 + len(encoded)}I", len(encoded), *map(len, encoded))
        return b"".join([head, sizes, *encoded])

    return _encoding(name, kind, encode_all, lambda data: [decode(each) for each in _split(data, len(head))])


def _decimal(name: str, kind: type) -> Encoding:
    return _encoding(name, kind, lambda value: str(value).encode(), lambda data: kind(data.decode()))


def _check(image: Any) -> None:
    from PIL import Image

    if not isinstance(image, Image.Image):
        raise TypeError(f"an image column takes PIL images or bytes, got {type(image).__name__}")


def _split(data: bytes, at: int) -> list[bytes]:
    (count,) = struct.unpack_from("<I", data, at)
    start = at + 4 + 4 * count
    if start > len(data):
        raise ValueError(f"a list of {count} elements does not fit into {len(data)} bytes")
    elements = []
    for size in struct.unpack_from(f"<{count}I", data, at + 4):
        elements.append(data[start : start + size])
        start += size
    if start != len(data):
        raise ValueError(f"the elements of a list end at byte {start} of {len(data)}")
    return elements


ENCODINGS = _Encodings(
    (each.name, each)
    for each in (
        _encoding("bytes", bytes, bytes, bytes),
        _encoding("str", str, str.encode, bytes.decode),
        _encoding("int", int, _encode_int, lambda data: _INT.unpack(data)[0], _INT.size),
        _decimal("str_int", int),
        _decimal("str_float", float),
        _decimal("str_decimal", Decimal),
        _encoding("json", object, _encode_json, json.loads),
        *map(_scalar, _TYPE_CODES),
        _encoding("pil", object, _encode_raw, _decode_raw),
        _encoding("jpeg", object, _encode_jpeg, _decode_file),
        _encoding("png", object, partial(_encode_as, "PNG"), _decode_file),
        _list("jpeg_array", (list, tuple), b"", lambda file: file, _decode_file),
        _list("jpegarray", (list, tuple), b"", lambda file: file, _decode_file),
        _list("list[pil]", list, bytes(4), _encode_raw, _decode_raw),
        _list("list[jpeg]", list, bytes(4), _encode_jpeg, _decode_file),
        _list("list[png]", list, bytes(4), partial(_encode_as, "PNG"), _decode_file),
        _encoding("pkl", object, pickle.dumps, pickle.loads),
    )
)
