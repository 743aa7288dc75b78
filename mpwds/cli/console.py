"""Prints for all commands: one console, one table, one progress bar, one report as text or JSON."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mpwds.viewing.wording import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDTH_OF_FILES = 200
_LEAST_WORDS = 13  # characters of a column
_SHOWN_S = 0.1


def report(as_json: bool, values: Any, text: str = "", to_stderr: bool = False) -> None:
    """Prints what a command did: as a line of JSON, which has ``null`` for NaN and infinity, or as text."""
    if as_json:
        try:
            text = json.dumps(values, allow_nan=False)
        except ValueError:
            text = json.dumps(_without_nan(values))
    print(text, file=sys.stderr if to_stderr else sys.stdout)


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(_without_nan, value))
    return None if isinstance(value, float) and not math.isfinite(value) else value


def complete_before(shards: int) -> str:
    """What a summary adds if shards of a run were there already."""
    return f"; {shards} {'was' if shards == 1 else 'were'} complete before" if shards else ""


def console(to_stderr: bool = False, soft_wrap: bool = True) -> Console:
    """A console that shows texts as they are: names in data are neither markup nor emoji. Files are wide.

    With ``soft_wrap``, it is left to the terminal to break long lines of text.
    """
    from rich.console import Console

    stream = sys.stderr if to_stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDTH_OF_FILES
    return Console(
        stderr=to_stderr, width=width, highlight=False, markup=False, emoji=False, soft_wrap=soft_wrap
    )


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str] = ()
) -> Table:
    """A table. Columns named in ``left`` hold words, which may be folded; others hold figures."""
    from rich.text import Text

    found = empty_table(title)
    for place, column in enumerate(columns):
        if column in left:
            widest = max([len(column), *(len(row[place]) for row in rows)])
            found.add_column(column, overflow="fold", min_width=min(widest, _LEAST_WORDS))
        else:
            found.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        found.add_row(*(Text(printable(cell)) for cell in row))
    return found


def empty_table(title: str, **look: Any) -> Table:
    """A table without columns, as all commands show them."""
    from rich import box
    from rich.table import Table

    head: Any = {"title_justify": "left", "title_style": "bold", "box": box.SIMPLE_HEAD, "show_edge": False}
    return Table(title=title or None, **head, **look)


@contextlib.contextmanager
def progress(
    total: int | None, done: int = 0, in_bytes: bool = False
) -> Iterator[Callable[[int, str], None]]:
    """Shows on standard error, if that is a terminal, how much of ``total`` is done.

    Yields ``advance(by, text)``; the text stands before the bar. ``total`` is ``None`` if it is unknown.
    """
    if not sys.stderr.isatty():
        yield lambda by, text: None
        return
    import rich.progress as bars

    amount = (bars.DownloadColumn(), bars.TransferSpeedColumn()) if in_bytes else (bars.MofNCompleteColumn(),)
    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), *amount, bars.TimeRemainingColumn())
    with bars.Progress(*columns, console=console(to_stderr=True, soft_wrap=False), transient=True) as bar:
        task = bar.add_task("", total=total, completed=done)
        shown = 0.0

        def advance(by: int, text: str) -> None:
            nonlocal done, shown
            done += by
            if (now := time.monotonic()) - shown > _SHOWN_S:
                shown = now
                bar.update(task, completed=done, description=text)

        yield advance
