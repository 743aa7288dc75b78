"""Images to the bytes of their files."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from mpwds.storage.writing.dumps import as_array

if TYPE_CHECKING:
    from PIL.Image import Image

# Rounding of floats and the quality of JPEG and TIFF are webdataset's, so that both write the same bytes.
IMAGE_FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    **dict.fromkeys(("jpg", "jpeg", "img", "image"), ("JPEG", {"quality": 100})),
    "png": ("PNG", {}),
    **dict.fromkeys(("pbm", "pgm", "ppm", "pnm"), ("PPM", {})),
    **dict.fromkeys(("tif", "tiff"), ("TIFF", {"quality": 100})),
    "bmp": ("BMP", {}),
    "webp": ("WEBP", {"lossless": True}),
}
"""By extension, Pillow's name of the format and its options."""


def imageencoder(image: Any, format: str = "PNG") -> bytes:
    """An image as a file.

    Args:
        image: A PIL image, or an array or tensor of shape (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), uint8 or
            float in [0, 1].
        format: An extension: ``jpg jpeg img image`` (JPEG of quality 100), ``webp`` (lossless) or
            ``png pbm pgm ppm pnm tif tiff bmp``. ``pgm`` makes the image grey, ``pbm`` black and white.

    Raises:
        ValueError: The format is none of these, or the array is none of those.
        OSError: The format cannot hold such an image (JPEG and alpha, say).
        ImportError: Pillow is missing.

    Source:
        ``webdataset.writer.imageencoder``.

    Example:
        >>> imageencoder(np.array([[0, 255]], "uint8"), "pgm")
        b'P5\\n2 1\\n255\\n\\x00\\xff'
    """
    extension = format.lower()
    if extension not in IMAGE_FORMATS:
        raise ValueError(f"image format {format!r} is none of {' '.join(IMAGE_FORMATS)}")
    picture = _as_image(image)
    if extension == "pgm":
        picture = picture.convert("L")
    elif extension == "pbm":
        picture = picture.convert("1")
    pillow_format, options = IMAGE_FORMATS[extension]
    with io.BytesIO() as stream:
        picture.save(stream, format=pillow_format, **options)
        return stream.getvalue()


def _as_image(value: Any) -> Image:
    try:
        import PIL.Image
    except ImportError as error:
        raise ImportError("images are encoded with Pillow: pip install 'mpwds[images]'") from error
    if isinstance(value, PIL.Image.Image):
        return value
    pixels = as_array(value)
    if pixels.dtype.kind == "f":
        if pixels.size and not (pixels.min() > -0.001 and pixels.max() < 1.001):
            raise ValueError(f"pixels reach from {pixels.min()} to {pixels.max()}, expected floats in [0, 1]")
        pixels = (np.clip(pixels, 0.0, 1.0) * 255.0).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise ValueError(f"pixels are {pixels.dtype}, expected uint8 or floats in [0, 1]")
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim != 2 and not (pixels.ndim == 3 and pixels.shape[2] in (3, 4)):
        raise ValueError(
            f"pixels have shape {pixels.shape}, expected (H, W), (H, W, 1), (H, W, 3) or (H, W, 4); "
            "torch's (C, H, W) becomes that by .permute(1, 2, 0)"
        )
    return PIL.Image.fromarray(np.ascontiguousarray(pixels))
