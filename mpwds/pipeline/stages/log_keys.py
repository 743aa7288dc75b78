"""Write down the keys of what passes through."""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.counts import Count
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.notes import arguments
from mpwds.pipeline.stages.map import key_of
from mpwds.pipeline.stream import Address, Derived, Stream


def log_keys(logfile: str | os.PathLike[str] | None = None) -> LogKeys:
    """Stage that appends a line to a file for each sample and passes the sample on.

    A line is ``position <tab> worker <tab> rank <tab> key``. Positions are counted from 0 in each worker and
    epoch; the key of an element that has none is ``None``. Workers may share the file: each line is written
    at once, at the file's end.

    Args:
        logfile: The file, created if missing; ``None`` and ``""`` write nothing.

    Raises:
        OSError: While iterating, the file cannot be written.

    Source:
        ``webdataset.filters.log_keys``.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     logfile = pathlib.Path(folder, "keys.tsv")
        ...     _ = list(log_keys(logfile)([{"__key__": "a"}, {"__key__": "b"}]))
        ...     logfile.read_text()
        '0\\t0\\t0\\ta\\n1\\t0\\t0\\tb\\n'
    """
    return LogKeys(None if logfile is None else os.fspath(logfile))


@dataclass(frozen=True)
class LogKeys(Filter):
    """The stage that ``log_keys`` makes."""

    logfile: str | None = None

    def __str__(self) -> str:
        return f"log_keys({arguments(*([self.logfile] if self.logfile else []))})"

    def count_of(self, incoming: Count) -> Count:
        return incoming

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Logged(self.logfile, source, context) if self.logfile else source


class _Logged(Derived[Any]):
    def __init__(self, logfile: str, source: Stream[Any], context: Context) -> None:
        super().__init__(source)
        self._logfile = logfile
        self._reader = f"{context.worker}\t{context.rank}"
        self._count = 0
        self._descriptor: int | None = None

    def __next__(self) -> tuple[Address, Any]:
        item: tuple[Address, Any] = self._next()
        if self._descriptor is None:
            self._descriptor = os.open(
                self._logfile, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666
            )
            weakref.finalize(self, os.close, self._descriptor)
        os.write(self._descriptor, f"{self._count}\t{self._reader}\t{key_of(item[1])}\n".encode())
        self._count += 1
        return item

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._count = state["count"]
