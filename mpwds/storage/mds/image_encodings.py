"""Images and lists of images as bytes, as MDS version 2 encodes them."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

# Others may run programs (EPS) or are read by plugins that few need.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")

_RAW_HEAD = struct.Struct("<3I")  # width, height, bytes of the mode's name
_BYTES_A_PIXEL = {
    **dict.fromkeys(("L", "P"), 1),
    **dict.fromkeys(("LA", "La", "PA", "I;16", "I;16L", "I;16B", "I;16N"), 2),
    **dict.fromkeys(("RGB", "YCbCr", "LAB", "HSV"), 3),
    **dict.fromkeys(("RGBA", "RGBa", "RGBX", "CMYK", "I", "F"), 4),
}


def encode_raw(image: Image) -> bytes:
    """Size, mode and pixels. A palette is not kept."""
    _check(image)
    mode = image.mode.encode()
    return _RAW_HEAD.pack(*image.size, len(mode)) + mode + image.tobytes()


def decode_raw(data: bytes) -> Image:
    """The image of ``encode_raw``'s bytes; a ``ValueError`` if they are none."""
    from PIL import Image

    width, height, mode_bytes = _RAW_HEAD.unpack_from(data)
    start = _RAW_HEAD.size + mode_bytes
    mode = data[_RAW_HEAD.size : start].decode()
    row = (width + 7) // 8 if mode == "1" else width * _BYTES_A_PIXEL.get(mode, 0)
    if not row * height or len(data) - start != row * height:
        raise ValueError(f"{width} x {height} pixels of mode {mode!r} do not have {len(data) - start} bytes")
    return Image.frombytes(mode, (width, height), data[start:])


def encode_jpeg(image: Image) -> bytes:
    """The image as a JPEG file: if it comes from one, that file's own bytes."""
    _check(image)
    filename = getattr(image, "filename", "")
    if filename and image.format in ("JPEG", "MPO"):
        try:
            with open(filename, "rb") as file:
                return file.read()
        except FileNotFoundError:
            pass
    return _encode(image, "JPEG")


def encode_png(image: Image) -> bytes:
    """The image as a PNG file."""
    _check(image)
    return _encode(image, "PNG")


def decode_file(data: bytes) -> Image:
    """The image of a file's bytes, read completely."""
    from PIL import Image

    image = Image.open(io.BytesIO(data), formats=_FORMATS)
    image.load()
    return image


def encode_files(files: Sequence[bytes]) -> bytes:
    """The bytes of several files: their number, their sizes, the files."""
    return _count_and_sizes(files) + b"".join(files)


def decode_files(data: bytes) -> list[Image]:
    """The images of ``encode_files``'s bytes."""
    return [decode_file(each) for each in _split(data, 0)]


def encode_list(encode: Callable[[Any], bytes]) -> Callable[[list[Any]], bytes]:
    """A function that encodes a list: four zero bytes, number and sizes of its elements, the elements."""

    def encode_all(elements: list[Any]) -> bytes:
        encoded = list(map(encode, elements))
        return bytes(4) + _count_and_sizes(encoded) + b"".join(encoded)

    return encode_all


def decode_list(decode: Callable[[bytes], Any]) -> Callable[[bytes], list[Any]]:
    """The opposite of ``encode_list``."""
    return lambda data: [decode(each) for each in _split(data, 4)]


def _check(image: Any) -> None:
    from PIL import Image

    if not isinstance(image, Image.Image):
        raise TypeError(f"an image column takes PIL images or bytes, got {type(image).__name__}")


def _encode(image: Image, format: str) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format=format)
    return stream.getvalue()


def _count_and_sizes(elements: Sequence[bytes]) -> bytes:
    return struct.pack(f"<{1 + len(elements)}I", len(elements), *map(len, elements))


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
