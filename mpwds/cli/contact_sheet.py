"""A picture of many small images with their labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_COLUMNS = 12
_TILE = 64
_GAP = 8
_LABEL_HEIGHT = 22
_TITLE_HEIGHT = 34
_LONGEST_LABEL = 10
_PAPER, _INK, _PALE = "#ffffff", "#1b1f24", "#59636e"


def write_contact_sheet(path: Path, images: npt.NDArray[np.uint8], labels: Sequence[Any], title: str) -> None:
    """Writes a PNG with rows of 12 images, each above its label.

    Images are scaled to 64 pixels: small ones by whole factors, so that their pixels show.

    Args:
        path: The file. Its folder is made if it is missing.
        images: uint8 of shape (N, 3, height, width).
        labels: N labels; their text is shown.
        title: The line at the top.

    Raises:
        OSError: The file cannot be written.
        ImportError: Pillow is missing.
    """
    from PIL import Image, ImageDraw, ImageFont

    columns = min(_COLUMNS, len(images))
    rows = -(-len(images) // columns)
    step_x, step_y = _TILE + _GAP, _TILE + _LABEL_HEIGHT
    sheet = Image.new("RGB", (_GAP + _COLUMNS * step_x, _TITLE_HEIGHT + rows * step_y + _GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((_GAP, _TITLE_HEIGHT / 2), title, _PALE, ImageFont.load_default(14), anchor="lm")
    font = ImageFont.load_default(13)
    for number, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        row, column = divmod(number, columns)
        left, top = _GAP + column * step_x, _TITLE_HEIGHT + row * step_y
        tile = _scaled(Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))))
        sheet.paste(tile, (left + (_TILE - tile.width) // 2, top + (_TILE - tile.height) // 2))
        middle = (left + _TILE / 2, top + _TILE + _LABEL_HEIGHT / 2 - 2)
        draw.text(middle, str(label)[:_LONGEST_LABEL], _INK, font, anchor="mm")
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    sheet.save(unfinished, "PNG")
    unfinished.replace(path)


def _scaled(image: Any) -> Any:
    from PIL import Image

    longer = max(image.size)
    if longer <= _TILE:
        factor = _TILE // longer
        return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    image.thumbnail((_TILE, _TILE), Image.Resampling.LANCZOS)
    return image
