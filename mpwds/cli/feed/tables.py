"""Feeds in a terminal: tables of reports and of tensors, and small pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from mpwds.cli.console import empty_table
from mpwds.feed import report as wording
from mpwds.feed.report import FeedReport
from mpwds.viewing.pictures import Pictures, SamplePicture, tile
from mpwds.viewing.tensors import TensorFigures
from mpwds.viewing.wording import Table, printable

_BLOCKS = " ▁▂▃▄▅▆▇█"
_BAR_WIDTH = 24
_LINE = 12  # characters of a histogram
_PICTURE_SIDE = 16  # characters
_PICTURES = 24
_LONG = (wording.BOUND, wording.SHAPE, "text")
_STYLES = {
    "running": "green",
    "starting": "yellow",
    "idle": "dim",
    "draining": "yellow",
    "lost": "bold red",
    "-": "dim",
    "0": "dim",
}


def fitting(report: FeedReport, name: str, place: Console, lines: int) -> RenderableType:
    """The report in so many lines of a terminal, if that is possible by leaving out workers."""
    whole = monitor(report, name)
    excess = len(place.render_lines(whole)) - lines
    return whole if excess <= 0 else monitor(report, name, len(report.workers) - excess - 1)


def monitor(report: FeedReport, name: str, most_workers: int | None = None) -> RenderableType:
    """The whole report on a feed; with only the first ``most_workers`` workers, if that is given."""
    head = Text.assemble((name, "bold cyan"), "\n")
    for value, unit in wording.headline(report):
        head.append_text(Text.assemble((value, "bold green"), f" {unit}    "))
    parts: list[RenderableType] = [head, *(_text(line, "dim") for line in wording.about(report)), ""]
    if report.verdict:
        style = "bold red" if report.lost else "bold"
        parts += [Text.assemble(("▸ ", "bold cyan"), (printable(report.verdict), style)), ""]
    if stages := wording.shown_stages(report):
        parts += [_stages(stages), ""]
    for table in wording.tables(report):
        parts += [_table(table, most_workers if table.title == "workers" else None), ""]
    parts += [_text(note, "dim") for note in [*report.tensors, *wording.notes(report)]]
    return Group(*parts)


def _text(text: str, style: str = "") -> Text:
    """A text of a server or a batch, which may hold anything."""
    return Text(printable(text), style)


def _table(content: Table, most: int | None = None) -> RichTable:
    table = empty_table(content.title, pad_edge=False, collapse_padding=True)
    for position, column in enumerate(content.columns):
        long = column in _LONG
        side: Any = "left" if long or position < content.left else "right"
        table.add_column(column, justify=side, no_wrap=not long, overflow="fold" if long else "ellipsis")
    shown = content.rows if most is None else content.rows[: max(most, 1)]
    for row in shown:
        table.add_row(*_cells(row, content.left))
    if len(shown) < len(content.rows):
        table.caption = f"and {len(content.rows) - len(shown)} more"
    return table


def _cells(row: Sequence[str], left: int) -> list[Text]:
    return [
        _text(cell, "" if cell == "0" and position < left else _STYLES.get(cell, ""))
        for position, cell in enumerate(row)
    ]


def _stages(stages: Sequence[Any]) -> RichTable:
    table = empty_table("stages", pad_edge=False, collapse_padding=True)
    table.add_column("stage", overflow="fold")
    table.add_column("share of workers' time", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("cost", justify="right", no_wrap=True)
    largest = max(stage.share for stage in stages)
    for stage in stages:
        style = "bold" if stage.share == largest else ""
        share, cost = Text(f"{stage.share:.0%}", style), Text(wording.stage_cost(stage), style)
        table.add_row(_text(stage.name, style), _bar(stage.share), share, cost)
    return table


def _bar(share: float) -> Text:
    """A bar in eighths of a character."""
    full, part = divmod(round(min(max(share, 0.0), 1.0) * _BAR_WIDTH * 8), 8)
    bar = "█" * full + (" ▏▎▍▌▋▊▉"[part] if part else "")
    return Text.assemble((bar, "cyan"), ("·" * (_BAR_WIDTH - len(bar)), "dim"))


def tensors(found: Sequence[TensorFigures]) -> RichTable:
    """Statistics of tensors, with a histogram in a line, or the first texts."""
    content = wording.tensor_table(found)
    table = _table(Table(content.title, (*content.columns, "histogram"), content.left, ()))
    table.columns[-1].justify = "left"
    for tensor, row in zip(found, content.rows, strict=True):
        cells = _cells(row, content.left)
        cells[-1].stylize("bold red" if tensor.nans or tensor.infinities else "dim")
        texts = _text(", ".join(tensor.texts[:4])[:_LINE], "dim")
        table.add_row(*cells, Text(sparkline(tensor), "cyan") if tensor.bins else texts)
    return table


def sparkline(tensor: TensorFigures) -> str:
    """A histogram of one character for each bin, or each two; one that holds anything shows."""
    bins = tensor.filled_bins
    if len(bins) > _LINE:
        bins = tuple(sum(bins[place : place + 2]) for place in range(0, len(bins), 2))
    return "".join(_BLOCKS[max(1, round(count / max(bins) * 8)) if count else 0] for count in bins)


def batch_pictures(shown: Pictures, width: int, colour: bool) -> RenderableType:
    """A batch's first samples: pictures where the terminal has colours, else labels and texts."""
    if not shown.samples:
        return Text("nothing in this batch can be shown as a picture or a text", "dim")
    if shown.kind == "text":
        texts = tuple((sample.label, sample.text) for sample in shown.samples[:_PICTURES])
        return _table(Table("", ("label", "text"), 2, texts))
    if not colour:
        labels = ", ".join(sample.label for sample in shown.samples if sample.label)
        return _text(f"labels: {labels}" if labels else f"{shown.total} samples without labels")
    across = max(1, width // (_PICTURE_SIDE + 1))
    grid = RichTable.grid(padding=(0, 1, 0, 0))
    samples = shown.samples[: min(_PICTURES, 3 * across)]
    for start in range(0, len(samples), across):
        line = samples[start : start + across]
        grid.add_row(*(_half_blocks(sample) for sample in line))
        grid.add_row(*(Text(printable(sample.label[:_PICTURE_SIDE]), justify="center") for sample in line))
    return grid


def _half_blocks(sample: SamplePicture) -> Text:
    """A picture in characters, each of which is two pixels, one above the other."""
    side = _PICTURE_SIDE
    pixels: Any = tile(sample, side).load()
    text = Text(no_wrap=True, end="")
    for row in range(0, side, 2):
        for column in range(side):
            text.append(*_character(pixels[column, row], pixels[column, row + 1]))
        if row + 2 < side:
            text.append("\n")
    return text


def _character(upper: Any, lower: Any) -> tuple[str, str]:
    def colour(pixel: Any) -> str:
        return "#{:02x}{:02x}{:02x}".format(*pixel[:3])

    if upper[3] and lower[3]:
        return "▀", f"{colour(upper)} on {colour(lower)}"
    if upper[3]:
        return "▀", colour(upper)
    return ("▄", colour(lower)) if lower[3] else (" ", "")
