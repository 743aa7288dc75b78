"""Locks on the files of a cache, which end with the process that holds them.

They are ``flock`` locks: the kernel keeps them with the open file, so whatever ends a process releases them.
A fork inherits open files, and with them locks; what is held exclusively is therefore closed in forks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator

_PATIENCE_S = 10.0
_PAUSE_S = 0.005

_exclusive: set[int] = set()


def try_exclusive(descriptor: int) -> bool:
    """Locks an open file for this descriptor alone, if nobody else has a lock on it.

    Raises:
        OSError: The file system has no locks.
    """
    return _try(descriptor, fcntl.LOCK_EX)


def try_shared(descriptor: int, patience_s: float = 0.5) -> bool:
    """Locks an open file together with others that read it, unless one has it exclusively all the while.

    Args:
        descriptor: The open file.
        patience_s: How long to try.

    Raises:
        OSError: The file system has no locks.
    """
    return _try(descriptor, fcntl.LOCK_SH, patience_s)


def unlock(descriptor: int) -> None:
    """Gives the lock back."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def keep_from_forks(descriptor: int) -> None:
    """Has a descriptor closed in forks of this process, until :func:`close`."""
    _exclusive.add(descriptor)


def close(descriptor: int) -> None:
    """Closes a descriptor of :func:`keep_from_forks`; with it the lock ends."""
    _exclusive.discard(descriptor)
    os.close(descriptor)


@contextlib.contextmanager
def exclusively(path: str) -> Iterator[int]:
    """Holds the lock of a file, which is made if it is missing, and gives its descriptor.

    Args:
        path: The file. It is never removed, so all lock the same one.

    Raises:
        OSError: The directory does not exist or is not writable, the file system has no locks, or another
            process has held the lock for more than ten seconds.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    keep_from_forks(descriptor)
    try:
        if not _try(descriptor, fcntl.LOCK_EX, _PATIENCE_S):
            raise TimeoutError(
                errno.ETIMEDOUT, f"another process has held the lock for {_PATIENCE_S:.0f} s", path
            )
        yield descriptor
    finally:
        close(descriptor)


def same_file(descriptor: int, path: str) -> bool:
    """Whether ``path`` still names the open file: its name may have gone, or to another one."""
    try:
        named = os.stat(path)
    except OSError:
        return False
    return os.path.samestat(os.fstat(descriptor), named)


def _try(descriptor: int, operation: int, patience_s: float = 0.0) -> bool:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_PAUSE_S)
        else:
            return True


def _close_in_child() -> None:
    for descriptor in _exclusive:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _exclusive.clear()


os.register_at_fork(after_in_child=_close_in_child)
