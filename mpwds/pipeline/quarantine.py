"""Error handler that records bad samples in a file and skips them, up to a budget."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, TypeVar

from mpwds.errors import QuarantineFull
from mpwds.pipeline.context import Context
from mpwds.suggestions import shown

T = TypeVar("T")


class Quarantine:
    """Error handler that records each bad sample in a file and skips it, up to a budget.

    A record is a line of JSON: ``url``, ``member``, ``key`` and ``offset`` of the sample if known, the
    ``stage`` that failed and the ``place`` in words, ``type``, ``message`` and ``traceback`` of the error,
    ``time`` (seconds since 1970), ``rank``, ``worker`` and ``pid``. A sample that fails again in the same
    stage is not recorded again. You may delete or empty the file; what was recorded before still counts.

    Args:
        path: The file; its directory must exist. Existing records stay and do not count; without a budget,
            their samples are not recorded again.
        budget: An ``int`` is the most bad samples that all processes together may record in the file. A
            ``float`` above 0 and at most 1 is the largest share of bad samples among those that this process
            has seen. It is checked once it allows ten bad samples, and at the end of each epoch, where one
            bad sample is always allowed. ``None`` means no limit.

    Raises:
        ValueError: ``budget`` is outside of these ranges; a ``TypeError`` if it is not a number.
        OSError: The file cannot be opened for writing.
        QuarantineFull: While iterating, there are more bad samples than the budget allows.

    Example:
        >>> import tempfile
        >>> from mpwds import DataPipeline
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     handler = quarantine(f"{folder}/bad.jsonl", budget=0.5)
        ...     print(list(DataPipeline(["1", "one", "2"]).map(int, handler=handler)))
        ...     with open(f"{folder}/bad.jsonl") as records:
        ...         print(json.loads(records.read())["message"])
        [1, 2]
        invalid literal for int() with base 10: 'one'
    """

    # Workers get copies of it with the dataset. They append whole lines to the file under a lock, and read
    # the lines of the others.

    def __init__(self, path: str | os.PathLike[str], budget: float | None = 100) -> None:
        if budget is not None:
            if isinstance(budget, bool) or not isinstance(budget, Real):
                expected = "a number of samples, a fraction or None"
                raise TypeError(f"quarantine: budget must be {expected}, got {shown(budget)}")
            if budget < 0 if isinstance(budget, Integral) else not 0 < budget <= 1:
                expected = "an int of at least 0, or a fraction above 0 and at most 1"
                raise ValueError(f"quarantine: a budget must be {expected}, got {shown(budget)}")
        self.path = os.path.abspath(os.fspath(path))
        self.budget = budget
        with open(self.path, "ab") as file:
            self._begin = 0 if budget is None else file.seek(0, os.SEEK_END)
            self._file = os.fstat(file.fileno()).st_ino
        self._start()

    def _start(self) -> None:
        self._read = self._begin  # how far the file has been read
        self._listed: set[tuple[Any, ...]] = set()  # identities of the records in the file
        self._counted: set[tuple[Any, ...]] = set()  # identities of all records, also in files deleted since
        self._recorded = 0  # bad samples, by all processes
        self._bad = 0  # in this process
        self._seen: Counter[str] = Counter()  # by stage, in this process

    def __repr__(self) -> str:
        return f"quarantine({self.path!r}, budget={self.budget!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "budget": self.budget, "_begin": self._begin, "_file": self._file}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def __call__(self, error: Exception) -> bool:
        """Records the error; raises ``QuarantineFull``, or ``OSError`` if the record cannot be written."""
        self._bad += 1
        record = _record(error)
        descriptor = self._open()
        try:
            self._read_on(descriptor)
            if _identity(record) not in self._listed:
                _append_line(descriptor, json.dumps(record).encode())
                self._read_on(descriptor)
        finally:
            os.close(descriptor)
        self._judge(error)
        return True

    def watch(self, stage: str, source: Callable[[], T]) -> Callable[[], T]:
        """Wraps ``source``, which returns a stage's next element, so that elements are counted."""

        def counted() -> T:
            try:
                item = source()
            except StopIteration:
                self._judge(at_end=True)
                raise
            self._seen[stage] += 1
            return item

        return counted

    def _open(self) -> int:
        """Opens and locks the file, again if it was deleted meanwhile."""
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            # Some file systems have no locks; lines stay whole without them.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(self.path), os.fstat(descriptor)):
                    return descriptor
            os.close(descriptor)

    def _read_on(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if status.st_ino != self._file or status.st_size < self._read:  # it was deleted or emptied
            self._file, self._read = status.st_ino, 0
            self._listed.clear()
        lines, end, _ = os.pread(descriptor, status.st_size - self._read, self._read).rpartition(b"\n")
        self._read += len(lines) + len(end)
        for line in lines.splitlines():
            with contextlib.suppress(ValueError):
                identity = _identity(json.loads(line))
                self._recorded += identity not in self._counted
                if identity is not None:
                    self._listed.add(identity)
                    self._counted.add(identity)

    def _judge(self, error: Exception | None = None, at_end: bool = False) -> None:
        budget = self.budget
        if isinstance(budget, Integral):
            if self._recorded > budget:
                raise QuarantineFull(
                    f"{self._recorded} bad samples are above the budget of {budget}: {self.path} lists them",
                    *(self.path, self._recorded, None),
                ) from error
        elif budget is not None:
            seen = max(self._bad, *self._seen.values(), 0)
            allowed = budget * seen
            if self._bad > max(1, allowed) and (at_end or allowed >= 10):
                raise QuarantineFull(
                    f"{self._bad} bad ones among {seen} samples are above the budget of {budget:.3g} of "
                    f"them: {self.path} lists them",
                    *(self.path, self._bad, seen),
                ) from error


quarantine = Quarantine


def _append_line(descriptor: int, line: bytes) -> None:
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":  # a kill cut the last line short
        line = b"\n" + line
    left = line + b"\n"
    try:
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError:
        written = len(line) + 1 - len(left)
        if os.fstat(descriptor).st_size == size + written:  # nobody else has appended: take it back
            os.ftruncate(descriptor, size)
        raise


def _record(error: Exception) -> dict[str, Any]:
    incident = vars(error).get("incident")
    context = Context.current()
    names = ("url", "member", "key", "offset", "stage", "place", "address")
    return {
        **{name: _as_json(getattr(incident, name, None)) for name in names},
        "type": type(error).__name__,
        "message": _text(error),
        "traceback": "".join(traceback.format_exception(error)),
        "time": time.time(),
        "rank": context.rank,
        "worker": context.worker,
        "pid": os.getpid(),
    }


def _as_json(value: Any) -> str | int | None:
    """A value that JSON has; a user's own exception or sample may have any other."""
    return value if value is None or isinstance(value, (str, int)) else _text(value)


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # a user's exception may fail to print, as when it was made half
        return f"<{type(value).__name__} that cannot be printed>"


def _identity(record: dict[str, Any]) -> tuple[Any, ...] | None:
    """Equal for two records of the same bad sample; ``None`` if the sample is unknown."""
    if record["stage"] is None:
        return None
    return record["stage"], record["place"], record["url"], record["offset"], record.get("address")
