"""A progress line on standard error, if that is a terminal."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars


class Progress:
    """Shows how much of a command's work is done, and how fast.

    Args:
        what: What the command does, such as ``"writing"``.
        total: How many there are to do; ``None`` if that is unknown.
        of: What is counted.

    Attributes:
        count: How many are done.
        nbytes: Bytes of their data.

    Example:
        >>> with Progress("writing", 2) as progress:
        ...     progress.advance(2, 600)
        >>> progress.count, progress.nbytes
        (2, 600)
    """

    def __init__(self, what: str, total: int | None = None, of: str = "samples") -> None:
        self.count = 0
        self.nbytes = 0
        self._of = of
        self._began = time.monotonic()
        console = Console(stderr=True)
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bars.add_task(what, total=total, rate="")

    def advance(self, count: int, nbytes: int = 0) -> None:
        """Adds what is done."""
        self.count += count
        self.nbytes += nbytes
        self._bars.update(self._task, advance=count, rate=self.rate)

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    @property
    def rate(self) -> str:
        """How many a second, and bytes, in words."""
        seconds = self.seconds or 1e-9
        rate = f"{self.count / seconds:,.0f} {self._of}/s"
        return f"{rate}, {self.nbytes / seconds / 1e6:,.0f} MB/s" if self.nbytes else rate

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bars.stop()
