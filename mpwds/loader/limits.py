"""Which limit of the system was met when workers could not start, and what to do."""

from __future__ import annotations

import errno

_WHAT_TO_DO = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "the whole machine has no file descriptor left",
    errno.EAGAIN: "raise the limit of processes (ulimit -u, or that of the container)",
    errno.ENOMEM: "there is no memory left",
}


def explained(error: OSError, workers: int) -> OSError | None:
    """The error with what to do about it, if it tells of a limit.

    Args:
        error: What stopped workers from being started.
        workers: How many were to start.

    Example:
        >>> print(explained(OSError(errno.EMFILE, "No files"), workers=90))
        [Errno 24] No files: 90 workers cannot start; raise the limit of open files (ulimit -n), or use fewer
    """
    if error.errno not in _WHAT_TO_DO:
        return None
    text = f"{error.strerror}: {workers} workers cannot start; {_WHAT_TO_DO[error.errno]}, or use fewer"
    return OSError(error.errno, text)
