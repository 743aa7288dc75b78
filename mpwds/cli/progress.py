"""Progress bars on standard error, where that is a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

_SHOWN_S = 0.1


@contextlib.contextmanager
def progress(total: int | None, done: int = 0, in_bytes: bool = True) -> Iterator[Callable[[int, str], None]]:
    """Shows how much of ``total`` is done; yields ``advance(by, text)``; the text stands before the bar.

    Args:
        total: Bytes or other units; ``None`` if unknown.
        done: How many of them are done already.
        in_bytes: Whether they are bytes.
    """
    if not sys.stderr.isatty():
        yield lambda by, text: None
        return
    import rich.progress as bars
    from rich.console import Console

    amount = (bars.DownloadColumn(), bars.TransferSpeedColumn()) if in_bytes else (bars.MofNCompleteColumn(),)
    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), *amount, bars.TimeRemainingColumn())
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, completed=done)
        shown = 0.0

        def advance(by: int, text: str) -> None:
            nonlocal done, shown
            done += by
            if (now := time.monotonic()) - shown > _SHOWN_S:
                shown = now
                bar.update(task, completed=done, description=text)

        yield advance
