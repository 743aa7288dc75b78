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


class WorkerTraceback(MpwdsError):
    """The text of a worker's traceback: the cause of the exception that is raised in the trainer."""
