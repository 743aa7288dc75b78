"""Decode images into arrays, tensors or PIL images."""

from __future__ import annotations

import io
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mpwds.imports import require
from mpwds.pipeline.decoding.fields import IMAGE_EXTENSIONS, FieldDecoder, as_tensor, extension_set
from mpwds.suggestions import shown

if TYPE_CHECKING:
    from PIL.Image import Image

_JPEG_COLORSPACES = {"RGB": "RGB", "RGBA": "RGBA", "L": "GRAY"}
_JPEG_START, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
# Markers: images whose pixels come from top to bottom in one pass, and segments that may precede these.
_JPEG_SEQUENTIAL = (b"\xff\xc0", b"\xff\xc1")
_JPEG_SKIPPED = frozenset(bytes((0xFF, kind)) for kind in (0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)))
# PostScript, and a format that may contain it. Pillow selects the format by content, not by name.
_PROGRAMS = ("EPS", "IPTC")


class ImageSpec(NamedTuple):
    """Container (``numpy``, ``torch``, ``pil``), mode, and whether values are float32 in [0, 1]."""

    container: str
    mode: str
    is_float: bool = False


_MODES = {"l": "L", "rgb": "RGB", "rgba": "RGBA"}

imagespecs = {
    **{f"{name}8": ImageSpec("numpy", mode) for name, mode in _MODES.items()},
    **{name: ImageSpec("numpy", mode, is_float=True) for name, mode in _MODES.items()},
    **{f"torch{name}8": ImageSpec("torch", mode) for name, mode in _MODES.items()},
    **{f"torch{name}": ImageSpec("torch", mode, is_float=True) for name, mode in _MODES.items()},
    **{f"pil{name}": ImageSpec("pil", mode) for name, mode in _MODES.items()},
    "torch": ImageSpec("torch", "RGB", is_float=True),
    "pil": ImageSpec("pil", "RGB"),
}
"""By name, all that an image can be decoded to."""


class ImageDecoder(FieldDecoder):
    """Handler for ``Decoder`` that decodes images of all formats to one layout.

    Colours, grey levels and alpha are converted as by ``PIL.Image.Image.convert``. The orientation in EXIF
    data is ignored. Arrays and tensors are writable and share no memory. Pillow decodes; JPEG goes through
    libjpeg-turbo directly where ``mpwds[turbojpeg]`` is installed, to the same pixels (to within 2 of 255
    where Pillow was built on another libjpeg).

    Args:
        imagespec: One of the names in the table of ``mpwds.decode``; case is ignored.
        extensions: Extensions of the fields to decode; case is ignored.

    Raises:
        ValueError: ``imagespec`` is not one of these names; or, when called, the image is PostScript (EPS, or
            IPTC, which may hold it), which would be executed.
        PIL.UnidentifiedImageError: When called, the data is not an image that Pillow knows.
        PIL.Image.DecompressionBombError: When called, the image has more than twice
            ``PIL.Image.MAX_IMAGE_PIXELS`` pixels.
        OSError: When called, the image is damaged or truncated.

    Source:
        ``webdataset.autodecode.ImageHandler``.

    Example:
        >>> decode = ImageDecoder("rgb8")
        >>> decode(".pgm", b"P5 2 1 255 " + bytes([0, 255])).tolist()
        [[[0, 0, 0], [255, 255, 255]]]
    """

    def __init__(self, imagespec: str, extensions: Iterable[str] = IMAGE_EXTENSIONS) -> None:
        if imagespec.lower() not in imagespecs:
            raise ValueError(
                f"unknown image format {shown(imagespec)}: the known ones are {' '.join(imagespecs)}"
            )
        self.imagespec = imagespec.lower()
        self.extensions = extension_set(extensions)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.imagespec!r})"

    def decode(self, data: Any) -> Any:
        container, mode, is_float = imagespecs[self.imagespec]
        if container == "pil":
            return _converted(data, mode)
        pixels = decode_jpeg(data, mode)
        if pixels is None:
            pixels = np.asarray(_converted(data, mode))
        if container == "torch" and pixels.ndim == 3:
            pixels = pixels.transpose(2, 0, 1)
        if is_float:
            pixels = pixels.astype(np.float32, order="C")
            pixels /= 255.0
        else:
            pixels = np.require(pixels, requirements=["C", "W"])  # copies if need be
        return pixels if container == "numpy" else as_tensor(pixels)


ImageHandler = ImageDecoder
"""``ImageDecoder`` under webdataset's name."""


def imagehandler(imagespec: Any, extensions: Any = IMAGE_EXTENSIONS) -> Any:
    """``ImageDecoder(imagespec, extensions)``, as webdataset writes it; the image of ``(data, imagespec)``.

    The second form is that of webdataset 0.1.

    Example:
        >>> imagehandler(b"P5 2 1 255 " + bytes([0, 255]), "l8").tolist()
        [[0, 255]]
    """
    if isinstance(imagespec, (bytes, bytearray, memoryview)):
        return ImageDecoder(extensions).decode(imagespec)
    return ImageDecoder(imagespec, extensions)


def open_image(data: Any) -> Image:
    """Opens an image of any format that Pillow decodes by itself. Its pixels are read when needed."""
    pillow = _pillow()
    try:
        image: Image = pillow.open(io.BytesIO(data))
    except pillow.UnidentifiedImageError:
        raise pillow.UnidentifiedImageError(f"cannot identify image file ({len(data)} bytes)") from None
    if image.format in _PROGRAMS:
        raise ValueError(
            f"{image.format} images are not decoded: they are programs, which Ghostscript would run"
        )
    return image


def _pillow() -> Any:
    return require("PIL.Image", "images are decoded with Pillow: pip install 'mpwds[images]'")


def _converted(data: Any, mode: str) -> Image:
    image = open_image(data)
    image.load()
    return image if image.mode == mode else image.convert(mode)


def as_rgb(image: Image) -> np.ndarray[Any, Any]:
    """The pixels as RGB, writable uint8 of shape (H, W, 3). Of 16 bits the upper eight count."""
    image.load()
    if image.mode.startswith("I;16") or image.mode == "I":
        grey = (np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))


def jpeg_header(data: Any, mode: str = "RGB") -> tuple[int, int, str] | None:
    """Height, width and subsampling of a JPEG image that ``decode_jpeg`` decodes to ``mode``, or ``None``."""
    if data[:3] != _JPEG_START or (simplejpeg := _simplejpeg()) is None:
        return None
    try:
        height, width, colorspace, subsampling = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    most = _pillow().MAX_IMAGE_PIXELS
    fits = most is None or height * width <= most
    is_same = colorspace == "Gray" or (colorspace in ("YCbCr", "RGB") and mode != "L")
    return (height, width, subsampling) if fits and is_same else None


def first_rows(data: Any, rows: int) -> bytes | None:
    """A JPEG image that says that it has so many ``rows``, its first: libjpeg decodes no more.

    Rows within a block, 8, of the last one may differ. ``None`` if the image may be cut off, or is
    progressive, of which all has to be read.
    """
    if data[-2:] != _JPEG_END:
        return None
    at = 2
    while (marker := bytes(data[at : at + 2])) in _JPEG_SKIPPED:
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    if marker not in _JPEG_SEQUENTIAL:
        return None
    height = at + 5  # after marker, length and precision
    return b"".join((data[:height], rows.to_bytes(2, "big"), data[height + 2 :]))


def decode_jpeg(
    data: Any,
    mode: str,
    reduced: tuple[int, int] = (0, 0),
    buffer: np.ndarray[Any, Any] | None = None,
    is_whole: bool = True,
) -> np.ndarray[Any, Any] | None:
    """The pixels of a JPEG image, uint8 of shape (H, W[, 3 or 4]); ``None`` if Pillow has to decode it.

    The image is reduced by 2, 4 or 8, in each direction, if that is ``reduced``, or as near as libjpeg-turbo
    comes without going below. ``buffer`` is memory for the pixels. What ``first_rows`` made is not whole.

    simplejpeg has its own libjpeg-turbo and writes pixels straight into an array. Pillow, built on the same
    library, copies them twice more: simplejpeg is 1.4 to 1.6 times as fast on photographs of 224x224, and 1.2
    times on megapixels. Pillow decodes where results could differ: CMYK and YCCK, colour to grey, images of
    more pixels than Pillow decodes without a warning, and data that simplejpeg calls damaged.
    So the same images are errors whether or not simplejpeg is installed.
    """
    if jpeg_header(data, mode) is None:
        return None
    try:
        pixels: np.ndarray[Any, Any] = _simplejpeg().decode_jpeg(
            data,
            _JPEG_COLORSPACES[mode],
            min_height=reduced[0],
            min_width=reduced[1],
            buffer=buffer,
            strict=is_whole,
        )
    except ValueError:
        return None
    return pixels[:, :, 0] if mode == "L" else pixels


@lru_cache(maxsize=1)
def _simplejpeg() -> Any:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg
