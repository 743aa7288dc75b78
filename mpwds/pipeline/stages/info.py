"""Show what passes through: ``info`` prints elements, ``log_keys`` writes their keys to a file."""

from __future__ import annotations

import os
import sys
import weakref
from dataclasses import dataclass
from typing import Any, TextIO

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.error_context import arguments, changed
from mpwds.pipeline.filter import PassThroughStage, Retrying, key_of
from mpwds.pipeline.stream import Address, Stream, WrappedStream
from mpwds.suggestions import suggest_arguments


@suggest_arguments
def info(
    fmt: str | None = None,
    n: int = 3,
    every: int = -1,
    width: int = 50,
    stream: TextIO | None = None,
    name: str = "",
) -> Info:
    """Stage that prints some of the elements and passes all of them on.

    Args:
        fmt: Format of a line, with the fields of a dict as names (``"{__key__} {cls}"``) and those of a tuple
            as numbers (``"{0}"``). By default each field is printed on a line of its own.
        n: Elements to print at the beginning of each epoch.
        every: After that, the stage prints every n-th element; by default no more.
        width: Characters to print of a field.
        stream: Where to print; by default ``sys.stderr`` of the process that runs the stage.
        name: Printed before each element, unless ``fmt`` is given.

    Raises:
        KeyError: While iterating, ``fmt`` names a field that a sample lacks.

    Source:
        ``webdataset.filters.info``.

    Example:
        >>> import sys
        >>> list(info("cls is {cls}", n=1, stream=sys.stdout)([{"cls": 7}, {"cls": 8}]))
        cls is 7
        [{'cls': 7}, {'cls': 8}]
    """
    return Info(fmt, n, every, width, stream, name)


@suggest_arguments
def log_keys(logfile: str | os.PathLike[str] | None = None) -> LogKeys:
    """Stage that appends a line to a file for each sample and passes the sample on.

    A line is ``position <tab> worker <tab> rank <tab> key``. Positions are counted from 0 in each worker and
    epoch. Workers may share the file, because each line is appended in a single write.

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
class Info(PassThroughStage, called="info"):
    fmt: str | None = None
    n: int = 3
    every: int = -1
    width: int = 50
    output: TextIO | None = None
    name: str = ""

    def __str__(self) -> str:
        more = changed(self, "n", "every", "width", "name")
        return f"info({arguments(*([] if self.fmt is None else [self.fmt]), **more)})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Shown(source, self)

    def lines(self, element: Any) -> list[str]:
        """The lines to print for an element."""
        if self.fmt is not None and isinstance(element, dict):
            return [self.fmt.format(**element)]
        several = isinstance(element, (tuple, list))
        if self.fmt is not None:
            return [self.fmt.format(*element) if several else self.fmt.format(element)]
        first = f"--- {self.name}".rstrip()
        if not several and not isinstance(element, dict):
            return [first, repr(element)[: self.width]]
        fields = enumerate(element) if several else element.items()
        return [first, *(f"{name} {repr(value)[: self.width]}" for name, value in fields)]


class _Shown(Retrying):
    _counters = ("_stopped", "_count")
    _stage: Info
    _count = 0

    def __next__(self) -> tuple[Address, Any]:
        stage = self._stage
        item: tuple[Address, Any] = self._next()
        self._count += 1
        if self._count <= stage.n or (stage.every > 0 and self._count % stage.every == 0):
            address, element = item
            try:
                lines = stage.lines(element)
            except Exception as error:
                self._handle(error, address, element)
            print(*lines, sep="\n", file=stage.output or sys.stderr)
        return item


@dataclass(frozen=True)
class LogKeys(PassThroughStage, called="log_keys"):
    logfile: str | None = None

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Logged(self.logfile, source, context) if self.logfile else source


class _Logged(WrappedStream[Any]):
    _counters = ("_count",)

    def __init__(self, logfile: str, source: Stream[Any], context: Context) -> None:
        super().__init__(source)
        self._logfile = logfile
        self._reader = f"{context.worker}\t{context.rank}"
        self._count = 0
        self._descriptor: int | None = None

    def __next__(self) -> tuple[Address, Any]:
        item: tuple[Address, Any] = self._next()
        if self._descriptor is None:
            self._descriptor = os.open(self._logfile, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            weakref.finalize(self, os.close, self._descriptor)
        line = f"{self._count}\t{self._reader}\t{key_of(item[1])}\n"
        os.write(self._descriptor, line.encode("utf-8", "surrogateescape"))  # as the names of tar members
        self._count += 1
        return item
