"""A contact sheet: a batch's first samples with their labels, and its tensors with histograms, as a PNG."""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mpwds.viewing.pictures import Pictures, pictures, tile
from mpwds.viewing.tensors import TensorFigures, TensorStatistics
from mpwds.viewing.wording import number, printable, shape_text

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

_WIDTH = 880
_MARGIN = 12
_GAP = 8
_TITLE_HEIGHT = 40
_LABEL_HEIGHT = 22
_TILE, _LARGE_TILE, _TEXT_TILE = 64, 99, 206  # of images up to 64 pixels, of larger ones, of texts
_WIDEST_LABEL = 206
_ROW_HEIGHT = 58
_BINS_WIDTH, _BINS_HEIGHT = 216, 40
_BAR_GAP = 3  # so that bars of the same height are not one
_FEWEST_BINS = 12  # so that a bar is not as wide as a histogram
_PAPER, _INK, _PALE, _LINE, _BAR = "#ffffff", "#1b1f24", "#59636e", "#d8dee4", "#0969da"


def contact_sheet(batch: Any, title: str) -> Image:
    """Draws a batch, as ``pictures`` shows it, below a title: an RGB image, 880 pixels wide.

    Example:
        >>> import numpy as np
        >>> contact_sheet((np.zeros((5, 28, 28), "uint8"), np.arange(5)), "five digits").width
        880
    """
    statistics = TensorStatistics()
    statistics.add(batch)
    return draw_sheet([(title, pictures(batch))], statistics.read())


def draw_sheet(sections: Sequence[tuple[str, Pictures]], tensors: Sequence[TensorFigures]) -> Image:
    """Draws pictures below their titles, and then a line with a histogram for each tensor."""
    from PIL import Image, ImageDraw

    grids = [_Grid(title, shown) for title, shown in sections]
    pictures_height = sum(grid.height for grid in grids)
    total = pictures_height + _GAP + len(tensors) * _ROW_HEIGHT + _MARGIN
    sheet = Image.new("RGB", (_WIDTH, total), _PAPER)
    draw = ImageDraw.Draw(sheet)
    top = 0
    for grid in grids:
        grid.draw(sheet, draw, top)
        top += grid.height
    for position, tensor in enumerate(tensors):
        _draw_tensor(draw, tensor, pictures_height + _GAP + position * _ROW_HEIGHT)
    return sheet


class _Grid:
    """Pictures in rows, below a title."""

    def __init__(self, title: str, shown: Pictures) -> None:
        self._title = f"{title} ({shown.note})" if shown.note else title
        self._shown = shown
        self._side = _side(shown)
        labels = [_font(13).getlength(printable(sample.label)) for sample in shown.samples]
        self._width = max(self._side, min(math.ceil(max(labels, default=0)), _WIDEST_LABEL))
        self._columns = (_WIDTH - 2 * _MARGIN + _GAP) // (self._width + _GAP)
        self._picture = self._side if shown.kind != "text" else 3 * _LABEL_HEIGHT
        self._label = _LABEL_HEIGHT if any(sample.label for sample in shown.samples) else _GAP
        rows = -(-len(shown.samples) // self._columns)
        self.height = _TITLE_HEIGHT + rows * (self._picture + self._label)

    def draw(self, sheet: Image, draw: ImageDraw, top: int) -> None:
        side, height, width = self._side, self._picture, self._width
        title = _fitting(draw, self._title, 14, _WIDTH - 2 * _MARGIN)
        draw.text((_MARGIN, top + _TITLE_HEIGHT / 2 + 2), title, _PALE, _font(14), "lm")
        for position, sample in enumerate(self._shown.samples):
            row, column = divmod(position, self._columns)
            left = _MARGIN + column * (width + _GAP)
            upper = top + _TITLE_HEIGHT + row * (height + self._label)
            if sample.text:
                _draw_text(draw, sample.text, (left, upper), width, height)
            else:
                picture, inset = tile(sample, side), left + (width - side) // 2
                if sample.wave is not None:
                    draw.line((inset, upper + side / 2, inset + side, upper + side / 2), _LINE)
                sheet.paste(picture, (inset, upper), picture)
            label = _fitting(draw, sample.label, 13, width)
            anchor = (left, "lm") if sample.text else (left + width / 2, "mm")
            draw.text((anchor[0], upper + height + self._label / 2 - 1), label, _INK, _font(13), anchor[1])


def _side(shown: Pictures) -> int:
    if shown.kind == "text":
        return _TEXT_TILE
    sides = [max(sample.pixels.shape[:2]) for sample in shown.samples if sample.pixels is not None]
    return _TILE if sides and max(sides) <= _TILE else _LARGE_TILE


def _draw_text(draw: ImageDraw, text: str, corner: tuple[float, float], width: int, height: int) -> None:
    """Draws as many words as fit in lines."""
    left, top = corner
    draw.rectangle((left, top, left + width, top + height - 4), "#f6f8fa")
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and draw.textlength(longer, _font(12)) > width - 12:
            lines.append(word)
        else:
            lines[-1] = longer
    most = (height - 8) // 17
    if len(lines) > most:
        lines[most - 1] += " …"
    for place, line in enumerate(lines[:most]):
        draw.text((left + 6, top + 4 + 17 * place), _fitting(draw, line, 12, width - 12), _INK, _font(12))


def _draw_tensor(draw: ImageDraw, tensor: TensorFigures, top: float) -> None:
    """Draws a line about a tensor, and its histogram at the right."""
    draw.line((_MARGIN, top, _WIDTH - _MARGIN, top), _LINE)
    name = _fitting(draw, tensor.path or "batch", 14, 150)
    draw.text((_MARGIN, top + 20), name, _INK, _font(14), "lm")
    draw.text((_MARGIN, top + 40), f"{tensor.dtype}  {shape_text(tensor.shape)}", _PALE, _font(12), "lm")
    if tensor.low is None or tensor.high is None:
        text = ", ".join(tensor.texts[:8]) if tensor.texts else "no values"
        draw.text((230, top + 20), _fitting(draw, text, 13, _WIDTH - 260), _INK, _font(13), "lm")
        return
    values = {"min": tensor.low, "max": tensor.high, "mean": tensor.mean, "std": tensor.std}
    for position, (what, value) in enumerate(values.items()):
        left = 230 + 86 * position
        draw.text((left, top + 20), number(value), _INK, _font(14), "lm")
        draw.text((left, top + 40), what, _PALE, _font(12), "lm")
    if tensor.nans or tensor.infinities:
        draw.text((574, top + 20), f"{tensor.nans + tensor.infinities:,}", "#cf222e", _font(14), "lm")
        draw.text((574, top + 40), "NaN, inf", "#cf222e", _font(12), "lm")
    left, bottom = _WIDTH - _MARGIN - _BINS_WIDTH, top + 9 + _BINS_HEIGHT
    bins = tensor.filled_bins or (0,)
    step = _BINS_WIDTH / max(len(bins), _FEWEST_BINS)
    for position, count in enumerate(bins):
        height = count / max(bins) * _BINS_HEIGHT if count else 0
        if count:
            right = left + (position + 1) * step - _BAR_GAP
            draw.rectangle((left + position * step, bottom - max(height, 1), right, bottom), _BAR)
    draw.line((left, bottom + 1, left + _BINS_WIDTH, bottom + 1), _LINE)


@functools.cache
def _font(size: int) -> Any:
    from PIL import ImageFont

    try:
        return ImageFont.truetype("DejaVuSans.ttf", size * 0.92)  # Pillow's own font has ASCII alone
    except OSError:
        return ImageFont.load_default(size)


def _fitting(draw: ImageDraw, text: str, size: int, width: float) -> str:
    """The text, cut short where it is wider than ``width`` pixels."""
    text = printable(text)
    shown = text[: int(width)]  # no character is narrower than a pixel
    if shown == text and draw.textlength(text, _font(size)) <= width:
        return text

    def width_of(count: int) -> float:
        return draw.textlength(shown[:count] + "…", _font(size))

    return shown[: bisect.bisect_right(range(1, len(shown)), width, key=width_of)] + "…"
