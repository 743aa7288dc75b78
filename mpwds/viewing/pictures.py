"""Pictures of a batch's samples: images, waveforms, or the heads of texts, with labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mpwds.viewing.tensors import Leaf, Values, leaves

if TYPE_CHECKING:
    from PIL.Image import Image

LEAST_SIDE = 4
"""Of an image with channels, in pixels; of one without, twice that."""

LEAST_WAVE = 64
"""Values of a waveform."""

_CHANNELS = (1, 3, 4)
_MOST_TRACKS = 8  # channels of a waveform
_TEXT_HEAD = 120  # characters
_LONGEST_LABEL = 24  # characters
_SHORT_LABEL = 12
_LABELS = 2  # of a sample
_SLACK = 0.01  # how far interpolation may overshoot 0 to 1
_WAVE = (47, 129, 247, 255)  # on white and on black paper
_NAN = (255, 0, 255)


@dataclass(frozen=True)
class SamplePicture:
    """The picture of a sample: ``pixels``, uint8 of shape (height, width, 3), a ``wave``, or ``text``."""

    pixels: Values | None = None
    wave: Values | None = None
    text: str = ""
    label: str = ""


@dataclass(frozen=True)
class Pictures:
    """Pictures or texts of a batch's samples."""

    path: str  # of the shown tensor or texts in the batch; empty if there is nothing to show
    kind: str  # "image", "waveform", "text" or empty
    note: str  # how values became colours, if they did not lie in a usual range
    samples: tuple[SamplePicture, ...]  # the first ones
    total: int  # samples in the batch


def pictures(batch: Any, most: int = 48, classes: Sequence[str] = ()) -> Pictures:
    """The first samples of a batch, ``most`` of them, as pictures or texts.

    Images may have their channels first or last, or none, and be of any numeric type. A batch without images
    is shown as waveforms, else as texts, else as the first values of each sample. ``classes`` are the names
    of the values of the first integer that each sample has.

    Example:
        >>> shown = pictures((np.zeros((2, 3, 8, 8), "float32"), np.array([5, 7])))
        >>> shown.kind, [sample.label for sample in shown.samples], shown.samples[0].pixels.shape
        ('image', ['5', '7'], (8, 8, 3))
    """
    found = leaves(batch)
    total = _samples(found)
    for kind, show in (("image", _images), ("waveform", _waves), ("text", _texts), ("text", _numbers)):
        for leaf in found:
            values = _of_each(leaf, total)
            with np.errstate(all="ignore"):  # values may be as large as their type allows
                shown = show(leaf, values[:most]) if values else None
            if shown is not None:
                note, samples = shown
                labels = _labels(found, leaf, len(values), classes)
                labelled = (
                    replace(sample, label=label) for sample, label in zip(samples, labels, strict=False)
                )
                return Pictures(leaf.path, kind, note, tuple(labelled), len(values))
    return Pictures("", "", "", (), total)


def _samples(found: Sequence[Leaf]) -> int:
    """The number of samples: the length that most leaves share; 1 for a sample by itself."""
    lengths = Counter(leaf.shape[0] for leaf in found if leaf.shape)
    if not lengths:
        return 1
    ((length, count), *_) = lengths.most_common(1)
    with_length = [leaf for leaf in found if leaf.shape]
    if count == 1 and len(with_length[0].shape) <= 3 and _layout(with_length[0].shape):
        return 1  # one image: nothing else is as long as its first side
    return int(length)


def _of_each(leaf: Leaf, total: int) -> list[Any]:
    """A leaf's arrays or texts, one for each sample. Empty if it has another number of them."""
    if len(leaf.arrays) > 1:
        return list(leaf.arrays)
    if not leaf.arrays:
        return list(leaf.texts)
    (array,) = leaf.arrays
    if array.ndim and len(array) == total:
        return list(array)
    return [array] if total == 1 else []


def _labels(found: Sequence[Leaf], shown: Leaf, total: int, classes: Sequence[str]) -> list[str]:
    """The samples' classes, keys or short texts, from the leaves that have one for each."""
    columns = []
    for leaf in found:
        values = _of_each(leaf, total)
        if leaf is not shown and len(values) == total and all(np.ndim(value) == 0 for value in values):
            are_integers = all(np.asarray(value).dtype.kind in "iu" for value in values)
            names, classes = (classes, ()) if are_integers else ((), classes)
            columns.append([_label(value, names) for value in values])
    short = [column for column in columns if max(map(len, column), default=0) <= _SHORT_LABEL]
    return [" · ".join(row) for row in zip(*(short or columns)[:_LABELS], strict=True)] or [""] * total


def _label(value: Any, names: Sequence[str]) -> str:
    if names and 0 <= value < len(names):
        value = names[int(value)]
    is_float = not isinstance(value, str) and np.asarray(value).dtype.kind == "f"
    return _head(f"{value:.4g}" if is_float else str(value), _LONGEST_LABEL)


_Shown = tuple[str, list[SamplePicture]]


def _images(leaf: Leaf, values: list[Any]) -> _Shown | None:
    if leaf.dtype.startswith("complex") or not leaf.arrays:
        return None
    frames = [value[len(value) // 2] if value.ndim == 4 and len(value) else value for value in values]
    layouts = {_layout(frame.shape) for frame in frames}
    if layouts & {""} or (layouts == {"HW"} and leaf.dtype in ("int64", "int32")):
        return None
    arrays = list(map(_channels_last, frames))
    low, high, note = _span(arrays, leaf.dtype)
    video = "; the middle frames" if values[0].ndim == 4 else ""
    return note + video, [SamplePicture(pixels=_pixels(array, low, high)) for array in arrays]


def _layout(shape: Sequence[int | str]) -> str:
    """``HWC``, ``CHW``, ``HW``, or an empty string for what is no image."""
    sizes = [size for size in shape if isinstance(size, int)]
    if len(sizes) != len(shape):
        return ""
    if len(sizes) == 3 and sizes[2] in _CHANNELS and min(sizes[:2]) >= LEAST_SIDE:
        return "HWC"
    if len(sizes) == 3 and sizes[0] in _CHANNELS and min(sizes[1:]) >= LEAST_SIDE:
        return "CHW"
    return "HW" if len(sizes) == 2 and min(sizes) >= 2 * LEAST_SIDE else ""


def _channels_last(array: Values) -> Values:
    layout = _layout(array.shape)
    if layout == "CHW":
        array = array.transpose(1, 2, 0)
    return array[..., None] if layout == "HW" else array


def _span(arrays: Sequence[Values], dtype: str) -> tuple[float, float, str]:
    """The values that become black and white, and a note unless these are obvious."""
    if dtype == "uint8":
        return 0, 255, ""
    if dtype == "bool":
        return 0, 1, ""
    finite = [array[np.isfinite(array)] for array in arrays]
    ranges = [(values.min().item(), values.max().item()) for values in finite if values.size]
    if not ranges:
        return 0, 1, ""
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    if dtype == "uint16" and high > 255:
        return 0, 65535, ""
    if low >= -_SLACK and high <= 1 + _SLACK:
        return 0, 1, ""
    if low >= 0 and high <= 255:
        return 0, 255, ""
    if low >= -1 - _SLACK and high <= 1 + _SLACK:
        return -1, 1, "-1 is black, 1 is white"
    return low, high, f"{low:.3g} is black, {high:.3g} is white"


def _pixels(array: Values, low: float, high: float) -> Values:
    nan = np.isnan(array).any(-1) if array.dtype.kind == "f" else None
    if array.dtype != np.uint8:
        scaled = (array.astype(np.float32) - low) * (255 / max(high - low, 1e-30))
        array = np.nan_to_num(scaled, nan=0.0).clip(0, 255).round().astype(np.uint8)
    if array.shape[-1] == 4:  # on white, as a viewer shows what is transparent
        alpha = array[..., 3:].astype(np.uint16)
        array = ((array[..., :3] * alpha + 255 * (255 - alpha)) // 255).astype(np.uint8)
    pixels: Values = np.repeat(array, 3, -1) if array.shape[-1] == 1 else array.copy()
    if nan is not None:
        pixels[nan] = _NAN
    return pixels


def _waves(leaf: Leaf, values: list[Any]) -> _Shown | None:
    if leaf.dtype.startswith(("int64", "int32", "uint", "bool", "complex")) or not leaf.arrays:
        return None
    if any(value.ndim not in (1, 2) or value.shape[-1] < LEAST_WAVE for value in values):
        return None
    if any(value.ndim == 2 and len(value) not in range(1, _MOST_TRACKS + 1) for value in values):
        return None
    return "", [
        SamplePicture(wave=value.reshape(-1, value.shape[-1])[0].astype(np.float32)) for value in values
    ]


def _texts(leaf: Leaf, values: list[Any]) -> _Shown | None:
    if leaf.arrays or leaf.dtype not in ("str", "bytes"):
        return None
    return "", [SamplePicture(text=_head(text)) for text in values]


def _numbers(leaf: Leaf, values: list[Any]) -> _Shown | None:
    if not leaf.arrays or any(value.ndim == 0 for value in values):
        return None
    heads = [", ".join(f"{number:.4g}" for number in value.reshape(-1)[:20].tolist()) for value in values]
    return "", [SamplePicture(text=_head(head)) for head in heads]


def _head(text: str, most: int = _TEXT_HEAD) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"


def tile(sample: SamplePicture, side: int) -> Image:
    """A sample's image or waveform in a transparent square of ``side`` pixels; without them, it is empty."""
    from PIL import Image

    square = Image.new("RGBA", (side, side), (0, 0, 0, 0))
    if sample.pixels is not None:
        image = Image.fromarray(np.ascontiguousarray(sample.pixels))
        scale = side / max(image.size)
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        # Of small images, the pixels show.
        method = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
        square.paste(image.resize(size, method), ((side - size[0]) // 2, (side - size[1]) // 2))
    elif sample.wave is not None:
        _draw_wave(square, sample.wave)
    return square


def _draw_wave(square: Image, wave: Values) -> None:
    """Draws, in each column of pixels, a line from the least to the largest value there."""
    from PIL import ImageDraw

    side = square.width
    draw = ImageDraw.Draw(square)
    wave = np.nan_to_num(wave)
    peak = float(np.abs(wave).max()) or 1.0
    edges = np.linspace(0, len(wave), side + 1).astype(int)
    for column in range(side):
        part = wave[edges[column] : max(edges[column + 1], edges[column] + 1)] / peak
        top, bottom = (side / 2 - value * side * 0.45 for value in (float(part.max()), float(part.min())))
        draw.line((column, top, column, max(bottom, top + 1)), _WAVE)
