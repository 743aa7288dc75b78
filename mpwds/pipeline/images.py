"""Decode images with Pillow into arrays, tensors or PIL images."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

_EXTENSIONS = """
    apng avif avifs blp bmp bufr bw cur dcx dds dib emf eps fit fits flc fli ftc ftu gbr gif grib h5 hdf
    icb icns ico iim im j2c j2k jfif jp2 jpc jpe jpeg jpf jpg jpx mpeg mpg msp pbm pcd pcx pgm png pnm
    ppm ps psd pxr qoi ras rgb rgba sgi tga tif tiff vda vst webp wmf xbm xpm
"""
IMAGE_EXTENSIONS = frozenset(_EXTENSIONS.split())
"""The extensions of the formats that Pillow reads."""


# PostScript, and what may hold it: whatever a field is called, Pillow goes by what its bytes are.
_PROGRAMS = ("EPS", "IPTC")


class _Spec(NamedTuple):
    container: str
    mode: str
    is_float: bool = False


_SPECS = {
    "l8": _Spec("numpy", "L"),
    "rgb8": _Spec("numpy", "RGB"),
    "rgba8": _Spec("numpy", "RGBA"),
    "l": _Spec("numpy", "L", is_float=True),
    "rgb": _Spec("numpy", "RGB", is_float=True),
    "rgba": _Spec("numpy", "RGBA", is_float=True),
    "torchl8": _Spec("torch", "L"),
    "torchrgb8": _Spec("torch", "RGB"),
    "torchrgba8": _Spec("torch", "RGBA"),
    "torchl": _Spec("torch", "L", is_float=True),
    "torch": _Spec("torch", "RGB", is_float=True),
    "torchrgb": _Spec("torch", "RGB", is_float=True),
    "torchrgba": _Spec("torch", "RGBA", is_float=True),
    "pill": _Spec("pil", "L"),
    "pil": _Spec("pil", "RGB"),
    "pilrgb": _Spec("pil", "RGB"),
    "pilrgba": _Spec("pil", "RGBA"),
}


class ImageDecoder:
    """Handler for ``Decoder`` that decodes images to one layout, whatever they were stored as.

    ===================================  ================================================================
    ``l8 rgb8 rgba8``                    uint8 array of shape (H, W), (H, W, 3), (H, W, 4)
    ``l rgb rgba``                       float32 array in [0, 1], the same shapes
    ``torchl8 torchrgb8 torchrgba8``     uint8 tensor of shape (H, W), (3, H, W), (4, H, W)
    ``torchl torchrgb torchrgba``        float32 tensor in [0, 1], the same shapes; ``torch`` is ``torchrgb``
    ``pill pilrgb pilrgba``              ``PIL.Image.Image`` of mode L, RGB, RGBA; ``pil`` is ``pilrgb``
    ===================================  ================================================================

    Colours, grey levels and alpha are converted as by ``PIL.Image.Image.convert``. The orientation in EXIF
    data is ignored. Arrays and tensors are writable and share no memory.

    Args:
        spec: One of these names.
        extensions: Extensions of the fields to decode; case is ignored.

    Raises:
        ValueError: ``spec`` is none of these.

    Source:
        ``webdataset.autodecode.ImageHandler``.

    Example:
        >>> decode = ImageDecoder("rgb8")
        >>> decode(".pgm", b"P5 2 1 255 " + bytes([0, 255])).tolist()
        [[[0, 0, 0], [255, 255, 255]]]
    """

    def __init__(self, spec: str, extensions: Iterable[str] = IMAGE_EXTENSIONS) -> None:
        if spec.lower() not in _SPECS:
            raise ValueError(f"unknown image format {spec!r}: the known ones are {' '.join(_SPECS)}")
        self.spec = spec.lower()
        self.extensions = frozenset(extension.lower() for extension in extensions)

    def __repr__(self) -> str:
        return f"ImageDecoder({self.spec!r})"

    def __call__(self, key: str, data: bytes) -> Any:
        """Decode a field if its extension is one of an image; else return ``None``.

        Raises:
            PIL.UnidentifiedImageError: The data is no image that Pillow knows.
            ValueError: It is PostScript (EPS, or IPTC, which may hold it), which would be executed.
            OSError: The image is damaged or truncated.
            ImportError: Pillow is missing, or torch for a tensor.
        """
        if key.rpartition(".")[2].lower() not in self.extensions:
            return None
        container, mode, is_float = _SPECS[self.spec]
        image = open_image(data)
        image.load()
        image = image if image.mode == mode else image.convert(mode)
        if container == "pil":
            return image
        pixels = np.asarray(image)
        if container == "torch":
            if pixels.ndim == 3:
                pixels = pixels.transpose(2, 0, 1)
            return _as_tensor(_as_float(pixels) if is_float else pixels.copy())
        return _as_float(pixels) if is_float else pixels.copy()


def imagehandler(imagespec: str, extensions: Iterable[str] = IMAGE_EXTENSIONS) -> ImageDecoder:
    """``ImageDecoder`` under webdataset's name.

    Example:
        >>> imagehandler("rgb8")
        ImageDecoder('rgb8')
    """
    return ImageDecoder(imagespec, extensions)


def open_image(data: bytes) -> Image:
    """Opens an image of any format that Pillow decodes by itself; its pixels are read when they are needed.

    Raises:
        PIL.UnidentifiedImageError: ``data`` is no image that Pillow knows.
        ValueError: The format is a program, which Pillow would have Ghostscript run.
        ImportError: Pillow is missing.

    Example:
        >>> open_image(b"P5 4 2 255 " + bytes(8)).size
        (4, 2)
    """
    try:
        import PIL.Image
    except ImportError as error:
        raise ImportError("images are decoded with Pillow: pip install 'mpwds[images]'") from error
    try:
        image = PIL.Image.open(io.BytesIO(data))
    except PIL.UnidentifiedImageError:
        raise PIL.UnidentifiedImageError(f"cannot identify image file ({len(data)} bytes)") from None
    if image.format in _PROGRAMS:
        raise ValueError(
            f"{image.format} images are not decoded: they are programs, which Ghostscript would run"
        )
    return image


def _as_float(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    result = pixels.astype(np.float32, order="C")
    result /= 255.0
    return result


def _as_tensor(array: np.ndarray[Any, Any]) -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError("tensors need torch: pip install torch") from error
    return torch.from_numpy(array)
