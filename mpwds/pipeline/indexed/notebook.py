"""Shows an indexed dataset in a notebook: its first samples, as pictures or texts."""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np

from mpwds.pipeline.decoding.decoders import Decoder
from mpwds.viewing.pictures import SamplePicture, pictures, tile
from mpwds.viewing.wording import printable

_SAMPLES = 12
_SIDE = 88  # pixels
_HIDDEN = "__url__", "__local_path__"
_ROW = "display:flex;flex-wrap:wrap;gap:8px"
_FIGURE = "margin:0;width:{width}px;text-align:center;font-size:12px;overflow-wrap:anywhere"
_TEXT = "text-align:left;padding:4px;border:1px solid rgba(128,128,128,.4);white-space:pre-wrap"


def html_of(title: str, read: Callable[[int], Any], length: int) -> str:
    """A title, and a dataset's first samples with their labels. Fields of bytes are decoded for it.

    All that comes from the data is escaped. A sample that cannot be read ends the row with its error.
    """
    samples: list[Any] = []
    problem = ""
    for position in range(min(length, _SAMPLES)):
        try:
            samples.append(_readable(read(position)))
        except Exception as error:
            problem = f"sample {position} cannot be read: {type(error).__name__}: {error}"
            break
    shown = pictures(_columns(samples), _SAMPLES) if samples else None
    figures = "".join(map(_figure, shown.samples)) if shown else ""
    row = f'<div style="{_ROW}">{figures}</div>' if figures else ""
    note = f"<p>{_escaped(problem)}</p>" if problem else ""
    return f"<pre>{_escaped(title, keep_lines=True)}</pre>{row}{note}"


def _readable(sample: Any) -> Any:
    """A sample with values that ``pictures`` can show: fields of bytes are decoded by their extensions."""
    if isinstance(sample, dict):
        fields = {name: _decoded(name, value) for name, value in sample.items() if name not in _HIDDEN}
        # What tells more comes first: the key becomes the label of a text.
        names = sorted(fields, key=lambda name: (isinstance(fields[name], bytes), name == "__key__"))
        return {name: _value(fields[name]) for name in names}
    if isinstance(sample, (tuple, list)):
        return tuple(map(_value, sample))
    return (_value(sample),)


def _decoded(name: str, value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return Decoder("rgb8")({"__key__": "", name: value})[name]
    except Exception:  # what cannot be decoded is shown as so many bytes
        return value


def _value(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    pillow = sys.modules.get("PIL.Image")
    if pillow is not None and isinstance(value, pillow.Image):
        return np.asarray(value.convert("RGB"))
    return value


def _columns(samples: Sequence[Any]) -> Any:
    """Lists of what the samples have in common, which may differ in size and type."""
    first = samples[0]
    if isinstance(first, dict):
        names = [name for name in first if all(isinstance(each, dict) and name in each for each in samples)]
        return {name: [sample[name] for sample in samples] for name in names}
    return tuple(map(list, zip(*samples, strict=False)))


def _figure(sample: SamplePicture) -> str:
    label = f"<figcaption>{_escaped(sample.label)}</figcaption>" if sample.label else ""
    if sample.text:
        width, body = 2 * _SIDE, f'<div style="{_TEXT}">{_escaped(sample.text)}</div>'
    else:
        width, body = _SIDE, _image(sample)
    return f'<figure style="{_FIGURE.format(width=width)}">{body}{label}</figure>'


def _image(sample: SamplePicture) -> str:
    file = io.BytesIO()
    tile(sample, _SIDE).save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return f'<img alt="" width="{_SIDE}" height="{_SIDE}" src="data:image/png;base64,{data}">'


def _escaped(text: str, keep_lines: bool = False) -> str:
    return escape(printable(text, keep="\n" if keep_lines else ""))
