"""Images of one size, made of encoded ones: decode, crop, resize and flip in one step.

The crop is chosen from the header, before anything is decoded. libjpeg-turbo decodes JPEG into memory that
each thread uses again, down to the crop's last row: at a half, a quarter or an eighth of the size where the
crop is at least 2, 4 or 8 times as large as the result, and its colours allow that. Such a crop begins and
ends at whole pixels of the smaller image. torch resizes: it weighs the pixels as Pillow does, with
antialiasing.

Sources: ``torchvision.transforms.RandomResizedCrop``, ``Resize`` and ``CenterCrop``, for the draws and the
rounding.
"""

from __future__ import annotations

import functools
import math
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from mpwds.pipeline.decoding.images import as_rgb, decode_jpeg, first_rows, jpeg_header, open_image

Size = int | tuple[int, int]

_TRIES = 10
_REDUCTIONS = (8, 4, 2)
_MOST_REDUCED = {"422": 2, "440": 2, "411": 1}
"""By subsampling: libjpeg-turbo reduces both directions of colours that have few pixels in one already."""
_MOST_PIXELS = 1 << 28  # of an image that a ratio of sides makes large


class Crop(NamedTuple):
    """A box of pixels of the image, and what becomes of it."""

    top: int
    left: int
    height: int
    width: int
    size: tuple[int, int]  # height and width to which the box is resized
    inner: tuple[int, int, int, int] | None = None  # top, left, height, width: the result in the resized box
    flipped: bool = False  # left to right


@dataclass(frozen=True)
class Resizer(ABC):
    """Base of functions from the bytes of an image to an array of one size."""

    size: Size
    dtype: str = "uint8"
    layout: str = "HWC"
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    antialias: bool = True

    called: ClassVar[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _checked(self.called, self.size))
        if self.dtype not in ("uint8", "float32"):
            raise ValueError(f"{self.called}: dtype must be 'uint8' or 'float32', got {self.dtype!r}")
        if self.layout not in ("HWC", "CHW"):
            raise ValueError(f"{self.called}: layout must be 'HWC' or 'CHW', got {self.layout!r}")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is None:
                continue
            if self.dtype != "float32":
                raise ValueError(f"{self.called}: {name} needs dtype='float32'")
            object.__setattr__(self, name, _numbers(f"{self.called}: {name}", values, 3))
            if name == "std" and not all(values):
                raise ValueError(f"{self.called}: std must not be 0, got {values!r}")

    def __call__(self, data: Any) -> npt.NDArray[Any]:
        return self.image(data).made()

    def imported_in_workers(self) -> tuple[str, ...]:
        """Modules that a fork server imports, so that workers have them at once and share their memory."""
        return ("torch",)

    def image(self, data: Any) -> Image:
        """The image, with its crop chosen. JPEG is decoded when the image is written, all else at once."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(
                f"it is {type(data).__name__}, expected bytes, which {self.called} decodes itself"
            )
        header = jpeg_header(data)
        if header is not None:
            height, width, subsampling = header
            # A smaller JPEG has the means of pixels.
            most = _MOST_REDUCED.get(subsampling, max(_REDUCTIONS)) if self.antialias else 1
            crop, reduction = _aligned(self.crop(height, width), (height, width), most)
            return Image(self, data, crop, reduction, (height, width))
        pixels = as_rgb(open_image(data))
        return Image(self, pixels, self.crop(*pixels.shape[:2]), 1, pixels.shape[:2])

    def box(self, data: Any) -> npt.NDArray[np.int64]:
        """The crop alone, as ``(top, left, height, width, flipped)``, for decoders elsewhere.

        Of JPEG it reads only the header.
        """
        return self.image(data).box()

    @abstractmethod
    def crop(self, height: int, width: int) -> Crop:
        """The crop for an image of this size."""

    def arithmetic(self, pixels: int) -> tuple[Any, Any]:
        """Factor and summand that make floats of a row of so many pixels; of planes, if 0."""
        mean = (0.0, 0.0, 0.0) if self.mean is None else tuple(self.mean)
        std = (1.0, 1.0, 1.0) if self.std is None else tuple(self.std)
        return _arithmetic(mean, std, pixels)


class Image:
    """An image that is resized, flipped and scaled: JPEG as it is written into its place, pixels at once.

    JPEG is reduced by ``reduction`` while it is decoded. Other ``data`` are uint8 pixels of shape (height,
    width, 3), which are not kept. ``size`` is height and width in pixels.
    """

    def __init__(
        self, resizer: Resizer, data: Any, crop: Crop, reduction: int, size: tuple[int, int]
    ) -> None:
        height, width = crop.size if crop.inner is None else crop.inner[2:]
        self.shape: tuple[int, ...] = (height, width, 3) if resizer.layout == "HWC" else (3, height, width)
        self.dtype = np.dtype(resizer.dtype)
        self.crop = crop
        self._resizer = resizer
        self._data = data
        self._reduction = reduction
        self._size = size
        self._result: npt.NDArray[Any] | None = None
        if isinstance(data, np.ndarray):  # a batch of these would take the memory of whole images
            self._result, self._data = self.made(), None

    def write_into(self, out: npt.NDArray[Any]) -> None:
        import torch

        if self._result is not None:
            out[...] = self._result
            return
        pixels, reduction = self._pixels()
        is_plain = self.dtype == np.uint8 and self._resizer.layout == "HWC" and not self.crop.flipped
        place = out if is_plain and self.crop.inner is None else _resizing.array((*self.crop.size, 3))
        _resize(pixels, self.crop, reduction, self._resizer.antialias, place)
        if place is out:
            return
        if self.crop.inner is not None:
            top, left, height, width = self.crop.inner
            place = place[top : top + height, left : left + width]
        rows, target = torch.from_numpy(place), torch.from_numpy(out)
        if self.crop.flipped:
            rows = rows.flip(1)
        is_last = self._resizer.layout == "HWC"
        if not is_last:
            rows = rows.permute(2, 0, 1)
        elif self.dtype != np.uint8:  # three numbers a pixel, by which torch calculates slowly
            rows, target = rows.flatten(1), target.view(len(target), -1)
        target.copy_(rows)
        if self.dtype != np.uint8:
            scale, offset = self._resizer.arithmetic(len(target[0]) // 3 if is_last else 0)
            target.mul_(scale).add_(offset)

    def made(self) -> npt.NDArray[Any]:
        out = np.empty(self.shape, self.dtype)
        self.write_into(out)
        return out

    def box(self) -> npt.NDArray[np.int64]:
        return np.array([*self.crop[:4], self.crop.flipped])

    def _pixels(self) -> tuple[npt.NDArray[np.uint8], int]:
        """uint8 pixels, and by how much they are reduced."""
        if isinstance(self._data, np.ndarray):
            return self._data, 1
        data, (height, width) = self._data, self._size
        needed = self.crop.top + self.crop.height + 8 * self._reduction
        if needed < height and (first := first_rows(data, needed)) is not None:
            data, height = first, needed
        reduced = -(-height // self._reduction), -(-width // self._reduction)
        buffer = _decoding.array((*reduced, 3)).ravel()
        found = decode_jpeg(data, "RGB", reduced=reduced, buffer=buffer, is_whole=data is self._data)
        pixels = as_rgb(open_image(self._data)) if found is None else found
        # Pillow decoded it, or the decoder knows no such factor.
        return pixels, self._reduction if pixels.shape[:2] == reduced else 1


@functools.lru_cache(64)
def _arithmetic(mean: tuple[float, ...], std: tuple[float, ...], pixels: int) -> tuple[Any, Any]:
    import torch

    means, stds = torch.tensor([mean, std], dtype=torch.float32)
    scale, offset = 1 / (255 * stds), -means / stds
    if pixels:
        return scale.repeat(pixels), offset.repeat(pixels)
    return scale.reshape(3, 1, 1), offset.reshape(3, 1, 1)


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
        for name in ("scale", "ratio"):
            low, high = numbers = _numbers(f"{self.called}: {name}", getattr(self, name), 2)
            if not 0 < low <= high:
                raise ValueError(f"{self.called}: {name} must be two numbers above 0, got {(low, high)}")
            object.__setattr__(self, name, numbers)
        if not isinstance(self.flip, (int, float)) or not 0 <= self.flip <= 1:
            raise ValueError(f"{self.called}: flip is a probability, got {self.flip!r}")

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
        object.__setattr__(self, "resize", _checked(self.called, self.resize))
        if any(have < want for have, want in zip(_pair(self.resize), _pair(self.size), strict=True)):
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


def _checked(called: str, size: Any) -> Size:
    """A size as an integer or a pair of integers, also from a list, as YAML has it."""
    given = list(size) if isinstance(size, (list, tuple)) else [size]
    are_whole = all(isinstance(each, (int, np.integer)) and each >= 1 for each in given)
    if len(given) not in (1, 2) or not are_whole:
        raise ValueError(f"{called}: a size is one or two integers of at least 1, got {size!r}")
    return int(given[0]) if len(given) == 1 else (int(given[0]), int(given[1]))


def _numbers(name: str, values: Any, count: int) -> Sequence[float]:
    """So many numbers, as they are given, or of an array as a tuple, which can be compared and printed."""
    try:
        numbers = tuple(map(float, () if isinstance(values, str) else values))
    except (TypeError, ValueError):
        numbers = ()
    if len(numbers) != count:
        raise ValueError(f"{name} must be {('two', 'three')[count - 2]} numbers, got {values!r}")
    return values if isinstance(values, (list, tuple)) else numbers


def _pair(size: Size) -> tuple[int, int]:
    return size if isinstance(size, tuple) else (size, size)


def _short_side(height: int, width: int, size: Size) -> tuple[int, int]:
    """``size`` if it is a pair; otherwise the size that makes it the length of the shorter side."""
    if isinstance(size, tuple):
        return size
    long = int(size * max(height, width) / min(height, width))
    if size * long > _MOST_PIXELS:
        raise ValueError(f"an image of {height} x {width} pixels would be resized to {size} x {long}")
    return (size, long) if height <= width else (long, size)


def _aligned(crop: Crop, image: tuple[int, int], most: int) -> tuple[Crop, int]:
    """The crop, moved to whole pixels of the image reduced by a factor, and that factor: at most ``most``."""
    for factor in _REDUCTIONS:
        if factor <= most and crop.height >= factor * crop.size[0] and crop.width >= factor * crop.size[1]:
            (top, height), (left, width) = (
                _multiples(start, extent, factor, whole)
                for start, extent, whole in zip(crop[:2], crop[2:4], image, strict=True)
            )
            return Crop(top, left, height, width, *crop[4:]), factor
    return crop, 1


def _multiples(start: int, extent: int, factor: int, whole: int) -> tuple[int, int]:
    # Both halves up: Python's ``round`` would make nothing of an odd multiple such as 12 to 20.
    first, last = ((at + factor // 2) // factor * factor for at in (start, start + extent))
    last = whole if start + extent == whole else min(last, whole)
    return first, last - first


def _resize(
    pixels: npt.NDArray[Any], crop: Crop, reduction: int, antialias: bool, out: npt.NDArray[Any]
) -> None:
    """Writes the crop of an image that is already reduced into ``out``, uint8 of shape (height, width, 3)."""
    import torch

    top, left = crop.top // reduction, crop.left // reduction
    bottom = -(-(crop.top + crop.height) // reduction)
    right = -(-(crop.left + crop.width) // reduction)
    box, target = torch.from_numpy(pixels)[top:bottom, left:right], torch.from_numpy(out)
    if box.shape == target.shape:
        target.copy_(box)
        return
    aten = torch.ops.aten
    resize: Callable[..., Any] = (
        aten._upsample_bilinear2d_aa.out if antialias else aten.upsample_bilinear2d.out
    )
    planes = target.permute(2, 0, 1)[None]
    # Of the reduced image's last row and column, the crop may have a part.
    scales = [size * reduction / extent for size, extent in zip(crop.size, crop[2:4], strict=True)]
    resize(box.permute(2, 0, 1)[None], crop.size, False, *scales, out=planes)


class _Scratch(threading.local):
    """Memory of this thread, used again: pages of fresh memory would have to be cleared first."""

    _memory: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def array(self, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        nbytes = math.prod(shape)
        if self._memory.nbytes < nbytes:
            self._memory = np.empty(nbytes, np.uint8)
        return self._memory[:nbytes].reshape(shape)


_decoding, _resizing = _Scratch(), _Scratch()
