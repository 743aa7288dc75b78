"""Every exception that is public."""

from __future__ import annotations


class MpwdsError(Exception):
    """Base of the errors that mpwds itself raises."""


class TenbinError(MpwdsError, ValueError):
    """Bytes that are not valid tenbin, or arrays that tenbin cannot hold.

    Attributes:
        offset: Byte offset in the input at which the fault lies; ``None`` where there is no input
            (when encoding).
    """

    def __init__(self, message: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.offset = offset


class EnvelopeError(MpwdsError, ValueError):
    """A message that is no envelope, or one of a version that this mpwds does not speak."""


class ShardError(MpwdsError, ValueError):
    """A shard that cannot be read: damaged, truncated, or not in the format its reader expects."""


class DecodeError(MpwdsError, ValueError):
    """A field of a sample that cannot be decoded; what its decoder raised is the cause.

    Attributes:
        key: The sample's ``__key__``; ``None`` if it has none.
        url: The shard that it comes from; ``None`` if the sample does not say.
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
    """Shared memory could not be had: the machine, the container or a limit has no more to give."""


class WorkerDied(MpwdsError, RuntimeError):
    """A worker process ended before its work did.

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


class EvenEpochError(MpwdsError, RuntimeError):
    """The ranks of a distributed job cannot have an epoch of equally many batches, or did not agree on it."""


class WorkerTraceback(MpwdsError):
    """The text of a worker's traceback: the cause of the exception that is raised in the trainer."""


class StreamError(MpwdsError, OSError):
    """Bytes that could not be read from a URL, or written to it.

    Attributes:
        url: The URL, without credentials.
        position: The byte at which it happened; ``None`` where that says nothing.
        tries: How often it was tried.
    """

    def __init__(self, message: str, url: str = "", position: int | None = None, tries: int = 1) -> None:
        super().__init__(message)
        self.url = url
        self.position = position
        self.tries = tries


class StreamNotFound(StreamError, FileNotFoundError):
    """A URL that names nothing: the server knows no such file or object."""


class SecurityError(MpwdsError, ValueError):
    """A URL, or data, that would run code or read local files where that was not allowed."""


class QuarantineFull(MpwdsError, RuntimeError):
    """More bad samples than the budget of a ``quarantine`` allows; the last one's error is the cause.

    Attributes:
        path: The file that lists them.
        count: How many were bad.
        seen: Among how many samples, where the budget is a fraction of them.
    """

    def __init__(self, message: str, path: str = "", count: int = 0, seen: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.count = count
        self.seen = seen


class SpecError(MpwdsError, ValueError):
    """A dataset specification that cannot be used. The message gives file, line and key.

    Attributes:
        file: The file; ``None`` for a specification that was given as a dict.
        line: The line in it, from 1.
        key: The key: ``"datasets[1].choose"``.
    """

    def __init__(self, message: str, file: str | None = None, line: int | None = None, key: str = "") -> None:
        super().__init__(message)
        self.file = file
        self.line = line
        self.key = key
