"""Images of any size and mode, brought to one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mpwds.pipeline.decoding.images import open_image

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_FIELDS = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm")
"""Fields of a sample that hold its image; the first that is there counts."""


def fit(data: bytes, size: int) -> npt.NDArray[np.uint8]:
    """Decodes an image to a square of RGB pixels: scaled until its shorter side fits, the middle cut out.

    Args:
        data: The image file.
        size: Height and width of the square in pixels.

    Returns:
        uint8 of shape (3, size, size).

    Raises:
        PIL.UnidentifiedImageError: ``data`` is no image that Pillow knows.
        OSError: The image is damaged or truncated.
        ValueError: The format is a program, which Pillow would have Ghostscript run.
        ImportError: Pillow is missing.

    Example:
        >>> fit(b"P5 4 2 255 " + bytes([9, 0, 255, 9] * 2), size=2)[0].tolist()
        [[0, 255], [0, 255]]
    """
    with open_image(data) as image:
        import PIL.Image
        import PIL.ImageOps

        image.draft("RGB", (size, size))  # a large JPEG is decoded at a fraction of its resolution
        upright = PIL.ImageOps.exif_transpose(image)
        square = PIL.ImageOps.fit(_as_rgb(upright), (size, size), PIL.Image.Resampling.BILINEAR)
    pixels: npt.NDArray[np.uint8] = np.asarray(square).transpose(2, 0, 1)
    return pixels


def _as_rgb(image: Image) -> Image:
    if image.mode.startswith("I"):  # 16 bits, which convert() cuts off at 255 instead of scaling them
        import PIL.Image

        high_bytes: npt.NDArray[Any] = np.clip(np.asarray(image) >> 8, 0, 255)
        image = PIL.Image.fromarray(high_bytes.astype(np.uint8))
    return image.convert("RGB")
