"""Images of one size, made of encoded ones: decode, crop, resize and flip in one step.

The crop is chosen from the header, before anything is decoded. libjpeg-turbo decodes JPEG into memory that
each thread uses again: at a half, a quarter or an eighth of the size where the crop is at least 2, 4 or 8
times as large as the result. Such a crop begins and ends at whole pixels of the smaller image. torch
resizes: it weighs the pixels as Pillow does, with antialiasing.

Sources: ``torchvision.transforms.RandomResizedCrop``, ``Resize`` and ``CenterCrop``, for the draws and the
rounding.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from mpwds.pipeline.decoding.images import as_rgb, decode_jpeg, jpeg_size, open_image

Size = int | tuple[int, int]

_TRIES = 10
_REDUCTIONS = (8, 4, 2)


class Crop(NamedTuple):
    """A box of pixels of the image, and what becomes of it.

    Attributes:
        size: Height and width to which the box is resized.
        inner: The part of the resized box that is the result, as ``(top, left, height, width)``.
        flipped: Whether the result is mirrored, left to right.
    """

    top: int
    left: int
    height: int
    width: int
    size: tuple[int, int]
    inner: tuple[int, int, int, int] | None = None
    flipped: bool = False


@dataclass(frozen=True)
class Resizer:
    """Base of functions from the bytes of an image to an array of one size."""

    size: Size
    dtype: str = "uint8"
    layout: str = "HWC"
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    antialias: bool = True

    called: ClassVar[str]

    def __post_init__(self) -> None:
        for size in _pair(self.size):
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"{self.called}: sizes must be integers of at least 1, got {self.size!r}")
        if self.dtype not in ("uint8", "float32"):
            raise ValueError(f"{self.called}: dtype must be 'uint8' or 'float32', got {self.dtype!r}")
        if self.layout not in ("HWC", "CHW"):
            raise ValueError(f"{self.called}: layout must be 'HWC' or 'CHW', got {self.layout!r}")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is None:
                continue
            if self.dtype != "float32":
                raise ValueError(f"{self.called}: {name} needs dtype='float32'")
            if len(values) != 3 or (name == "std" and not all(values)):
                raise ValueError(f"{self.called}: {name} must be three numbers, got {values!r}")

    def __call__(self, data: Any) -> npt.NDArray[Any]:
        return self.with_crop(data)[0]

    def with_crop(self, data: Any) -> tuple[npt.NDArray[Any], Crop]:
        """The array, and the crop of the image of which it was made."""
        size = jpeg_size(data)
        if size is None:
            pixels = as_rgb(open_image(data))
            crop, reduction = self.crop(*pixels.shape[:2]), 1
        else:
            crop, reduction = _aligned(self.crop(*size), size)
            height, width = (-(-extent // reduction) for extent in size)
            found = decode_jpeg(data, "RGB", reduced=(height, width), buffer=_scratch(height * width * 3))
            pixels = as_rgb(open_image(data)) if found is None else found
            if pixels.shape[:2] != (height, width):  # Pillow decoded it, or the decoder knows no such factor
                reduction = 1
        return self._finished(_resized(pixels, crop, reduction, self.antialias), crop.flipped), crop

    def crop(self, height: int, width: int) -> Crop:
        """The crop for an image of this size."""
        raise NotImplementedError

    def _finished(self, pixels: npt.NDArray[Any], flipped: bool) -> npt.NDArray[Any]:
        """uint8 pixels of shape (height, width, 3) as the options say."""
        import torch

        rows = torch.from_numpy(pixels)
        if flipped:
            rows = rows.flip(1)
        if self.layout == "CHW":
            rows = rows.permute(2, 0, 1)
        if self.dtype == "uint8":
            return np.ascontiguousarray(rows.numpy())
        scale, offset = self._arithmetic()
        out = torch.empty(rows.shape, dtype=torch.float32).copy_(rows).mul_(scale).add_(offset)
        result: npt.NDArray[Any] = out.numpy()
        return result

    def _arithmetic(self) -> tuple[Any, Any]:
        """Factor and summand that make float rows of values from 0 to 255."""
        import torch

        std = torch.tensor([1.0, 1.0, 1.0] if self.std is None else list(self.std))
        mean = torch.tensor([0.0, 0.0, 0.0] if self.mean is None else list(self.mean))
        shape = (3, 1, 1) if self.layout == "CHW" else (3,)
        return (1 / (255 * std)).reshape(shape), (-mean / std).reshape(shape)


@dataclass(frozen=True)
class RandomResizedCrop(Resizer):
    """The function that ``mpwds.random_resized_crop`` applies to a field. It draws from Python's ``random``.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> Image.new("RGB", (50, 40), "red").save(file := io.BytesIO(), "PNG")
        >>> image = RandomResizedCrop(32)(file.getvalue())
        >>> image.shape, image[0, 0].tolist()
        ((32, 32, 3), [255, 0, 0])
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5

    called = "random_resized_crop"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, (low, high) in (("scale", self.scale), ("ratio", self.ratio)):
            if not 0 < low <= high:
                raise ValueError(f"{self.called}: {name} must be two numbers above 0, got {(low, high)}")
        if not 0 <= self.flip <= 1:
            raise ValueError(f"{self.called}: flip is a probability, got {self.flip}")

    def crop(self, height: int, width: int) -> Crop:
        box = self._box(height, width)
        return Crop(*box, _pair(self.size), flipped=random.random() < self.flip)

    def _box(self, height: int, width: int) -> tuple[int, int, int, int]:
        low, high = map(math.log, self.ratio)
        for _ in range(_TRIES):
            area = height * width * random.uniform(*self.scale)
            ratio = math.exp(random.uniform(low, high))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return random.randint(0, height - h), random.randint(0, width - w), h, w
        ratio = min(max(width / height, self.ratio[0]), self.ratio[1])
        h, w = min(height, round(width / ratio)), min(width, round(height * ratio))
        h, w = max(h, 1), max(w, 1)
        return (height - h) // 2, (width - w) // 2, h, w


@dataclass(frozen=True)
class ResizeCenterCrop(Resizer):
    """The function that ``mpwds.resize_center_crop`` applies to a field."""

    size: Size = 224
    resize: Size = 256

    called = "resize_center_crop"

    def __post_init__(self) -> None:
        super().__post_init__()
        smallest = (self.resize, self.resize) if isinstance(self.resize, int) else self.resize
        if any(have < want for have, want in zip(smallest, _pair(self.size), strict=True)):
            raise ValueError(
                f"{self.called}: the crop, {self.size}, must not be larger than resize={self.resize}"
            )

    def crop(self, height: int, width: int) -> Crop:
        size = _short_side(height, width, self.resize)
        h, w = _pair(self.size)
        top, left = round((size[0] - h) / 2), round((size[1] - w) / 2)
        return Crop(0, 0, height, width, size, (top, left, h, w))


@dataclass(frozen=True)
class Resized(Resizer):
    """The function that ``mpwds.resized`` applies to a field."""

    called = "resized"

    def crop(self, height: int, width: int) -> Crop:
        return Crop(0, 0, height, width, _short_side(height, width, self.size))


def _pair(size: Size) -> tuple[int, int]:
    return size if isinstance(size, tuple) else (size, size)


def _short_side(height: int, width: int, size: Size) -> tuple[int, int]:
    """``size`` if it is a pair; otherwise the size that makes it the length of the shorter side."""
    if isinstance(size, tuple):
        return size
    long = int(size * max(height, width) / min(height, width))
    return (size, long) if height <= width else (long, size)


def _aligned(crop: Crop, image: tuple[int, int]) -> tuple[Crop, int]:
    """The crop, moved to whole pixels of the image reduced by a factor, and that factor."""
    for factor in _REDUCTIONS:
        if crop.height >= factor * crop.size[0] and crop.width >= factor * crop.size[1]:
            (top, height), (left, width) = (
                _multiples(start, extent, factor, whole)
                for start, extent, whole in zip(crop[:2], crop[2:4], image, strict=True)
            )
            return crop._replace(top=top, left=left, height=height, width=width), factor
    return crop, 1


def _multiples(start: int, extent: int, factor: int, whole: int) -> tuple[int, int]:
    first, last = round(start / factor) * factor, round((start + extent) / factor) * factor
    last = whole if start + extent == whole else min(last, whole)
    return first, last - first


def _resized(pixels: npt.NDArray[Any], crop: Crop, reduction: int, antialias: bool) -> npt.NDArray[Any]:
    """The crop of an image that is already reduced, resized: uint8 of shape (height, width, 3)."""
    import torch

    top, left = crop.top // reduction, crop.left // reduction
    bottom = -(-(crop.top + crop.height) // reduction)
    right = -(-(crop.left + crop.width) // reduction)
    box = torch.from_numpy(pixels)[top:bottom, left:right]
    if tuple(box.shape[:2]) == crop.size:
        resized = box.numpy()
    else:
        resized = np.empty((*crop.size, 3), np.uint8)
        out = torch.from_numpy(resized).permute(2, 0, 1)[None]
        resize: Callable[..., Any] = (
            torch.ops.aten._upsample_bilinear2d_aa.out
            if antialias
            else torch.ops.aten.upsample_bilinear2d.out
        )
        resize(box.permute(2, 0, 1)[None], crop.size, False, None, None, out=out)
    if crop.inner is not None:
        top, left, height, width = crop.inner
        resized = resized[top : top + height, left : left + width]
    return resized.copy() if resized.base is not None else resized


class _Scratch(threading.local):
    memory: npt.NDArray[Any] = np.empty(0, np.uint8)


_own = _Scratch()


def _scratch(nbytes: int) -> npt.NDArray[Any]:
    """Memory of this thread, used again: pages of fresh memory would have to be cleared first."""
    if _own.memory.nbytes < nbytes:
        _own.memory = np.empty(nbytes, np.uint8)
    return _own.memory
