"""Which fields are images, sound and video, and the base of the handlers that decode them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

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


class FieldDecoder:
    """Base of handlers that decode the fields with certain extensions."""

    takes_views = True  # `Decoder` may hand it memoryviews
    extensions: Collection[str]

    def __call__(self, key: str, data: Any) -> Any:
        """Decodes a field of that name if its extension is one of ``extensions``; else returns ``None``."""
        return self.decode(data) if self.handles(key) else None

    def handles(self, key: str) -> bool:
        """True if a field of that name is decoded."""
        return extension_of(key) in self.extensions

    def decode(self, data: Any) -> Any:
        """Decodes a field, whatever its name."""
        raise NotImplementedError


def extension_of(key: str) -> str:
    """The last extension of a field's name, in lower case."""
    return key.rpartition(".")[2].lower()


def extension_set(extensions: Iterable[str]) -> frozenset[str]:
    """Extensions in lower case, from an iterable or one string with spaces."""
    names = extensions.split() if isinstance(extensions, str) else extensions
    return frozenset(name.lower() for name in names)


def as_tensor(array: np.ndarray[Any, Any]) -> Any:
    """A tensor that shares an array's memory."""
    try:
        import torch
    except ImportError as error:
        raise ImportError("tensors need torch: pip install torch, or decode to arrays") from error
    return torch.from_numpy(array)
