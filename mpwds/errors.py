"""All public exceptions, and short tracebacks: the user's frames without this package's."""

from __future__ import annotations

import functools
import os
import tarfile
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

C = TypeVar("C", bound="Callable[..., Any]")


class MpwdsError(Exception):
    """Base of the errors that mpwds itself raises."""


class WrongArgument(ValueError):
    """An argument of a command makes no sense."""


class TenbinError(MpwdsError, ValueError):
    """Bytes are not valid tenbin, or arrays cannot be encoded as tenbin.

    Attributes:
        offset: Byte offset of the fault in the input; ``None`` when encoding.
    """

    def __init__(self, message: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.offset = offset


class EnvelopeError(MpwdsError, ValueError):
    """A message is not an envelope, or has a version that this mpwds does not support."""


class ShardError(MpwdsError, tarfile.ReadError, ValueError):
    """A shard cannot be read: it is damaged, truncated, or not in the expected format.

    It is a ``tarfile.ReadError`` because programs of webdataset catch that.
    """


class DecodeError(MpwdsError, ValueError):
    """A field of a sample cannot be decoded. Its cause is the decoder's exception.

    Attributes:
        key: The sample's ``__key__``; ``None`` if it has none.
        url: The sample's shard; ``None`` if unknown.
        field: The field's name.
    """

    def __init__(
        self, message: str, key: str | None = None, url: str | None = None, field: str | None = None
    ) -> None:
        super().__init__(message)
        self.key = key
        self.url = url
        self.field = field

    @property
    def k(self) -> str | None:
        """``field``, as webdataset's error calls it."""
        return self.field


class SharedMemoryError(MpwdsError, MemoryError):
    """Shared memory could not be allocated: the machine, the container or a limit has no more."""


class WorkerDied(MpwdsError, RuntimeError):
    """A worker process ended before its work was done.

    Attributes:
        worker: The worker's index.
        pid: Its process id.
        exitcode: Its exit status; ``-n`` when signal ``n`` killed it.
    """

    def __init__(self, message: str, worker: int = -1, pid: int = -1, exitcode: int | None = None) -> None:
        super().__init__(message)
        self.worker = worker
        self.pid = pid
        self.exitcode = exitcode


class WorkerTimeout(MpwdsError, TimeoutError):
    """A worker delivered nothing for ``timeout`` seconds.

    Attributes:
        worker: The worker's index.
        pid: Its process id.
    """

    def __init__(self, message: str, worker: int = -1, pid: int = -1) -> None:
        super().__init__(message)
        self.worker = worker
        self.pid = pid


class ServerLost(MpwdsError, ConnectionError):
    """A server does not answer, and the loader was told not to wait any longer."""


class EvenEpochError(MpwdsError, RuntimeError):
    """The ranks of a distributed job cannot have an epoch of equal length, or did not agree on it."""


class WorkerTraceback(MpwdsError):
    """The text of a worker's traceback: the cause of the exception that the trainer raises."""


class StreamError(MpwdsError, OSError):
    """Bytes could not be read from a URL, or written to it.

    Attributes:
        url: The URL, without credentials.
        position: The byte at which it happened; ``None`` if that is meaningless.
        tries: Number of attempts.
    """

    def __init__(self, message: str, url: str = "", position: int | None = None, tries: int = 1) -> None:
        super().__init__(message)
        self.url = url
        self.position = position
        self.tries = tries


class StreamNotFound(StreamError, FileNotFoundError):
    """A URL names nothing: the server has no such file or object."""


class SecurityError(MpwdsError, ValueError):
    """A URL, or data, would run code or read local files without permission."""


class QuarantineFull(MpwdsError, RuntimeError):
    """There are more bad samples than a ``quarantine`` allows. The cause is the last one's error.

    Attributes:
        path: The file that lists them.
        count: Number of bad samples.
        seen: Number of all samples, if the budget is a fraction.
    """

    def __init__(self, message: str, path: str = "", count: int = 0, seen: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.count = count
        self.seen = seen


class SharedRandomError(MpwdsError, RuntimeError):
    """A function whose calls overlap in threads draws from a random generator that all threads share."""


class SpecError(MpwdsError, ValueError):
    """A dataset specification is invalid. The message gives file, line and key.

    Attributes:
        file: The file; ``None`` if the specification is a dict.
        line: The line in it, from 1.
        key: The key: ``"datasets[1].choose"``.
    """

    def __init__(self, message: str, file: str | None = None, line: int | None = None, key: str = "") -> None:
        super().__init__(message)
        self.file = file
        self.line = line
        self.key = key


FULL = "MPWDS_FULL_TRACEBACK"  # environment variable that keeps all frames


def shorten(error: BaseException, keep_first: bool = True) -> None:
    """Removes this package's frames from the traceback of ``error`` and of its causes and contexts.

    Call it where the error leaves the package, before ``raise``. Frames of the user and of other packages
    stay. So does the innermost frame, because it shows where the error was raised, and with ``keep_first``
    the outermost, which is the caller's. An exception that a worker raised has its frames in its cause. With
    the environment variable ``MPWDS_FULL_TRACEBACK`` set to anything but ``0``, this does nothing.
    """
    if os.environ.get(FULL, "0") not in ("", "0"):
        return
    for each in _with_those_behind(error):
        first = each.__traceback__
        if first is None:
            continue
        frames = [first]
        while (following := frames[-1].tb_next) is not None:
            frames.append(following)
        kept = [frame for frame in frames[:-1] if not is_ours(frame.tb_frame)]
        if not (isinstance(each.__cause__, WorkerTraceback) and is_ours(frames[-1].tb_frame)):
            kept.append(frames[-1])
        if not kept or (each is error and keep_first and kept[0] is not first):
            kept.insert(0, first)
        for frame, after in zip(kept, [*kept[1:], None], strict=True):
            frame.tb_next = after
        each.with_traceback(kept[0])  # an assignment fails for frozen dataclasses


def shortened(function: C) -> C:
    """Decorator: an error that leaves ``function`` has a short traceback, see ``shorten``."""

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        try:
            return function(*args, **given)
        except (Exception, KeyboardInterrupt) as error:
            shorten(error, keep_first=False)
            raise

    return call  # type: ignore[return-value]  # it has the signature of what it wraps


def _with_those_behind(error: BaseException) -> Iterator[BaseException]:
    """``error``, its causes and contexts, and the members of exception groups among them."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            waiting += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
            yield each


def is_ours(frame: FrameType) -> bool:
    """True if a frame runs this package's code."""
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0] == __package__
