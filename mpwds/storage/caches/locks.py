"""File locks that the kernel releases when their process ends, however it ends.

They are ``flock`` locks, which belong to an open file. A fork inherits open files, so it closes those that
are locked exclusively.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time

_POLL_S = 0.005

_exclusive: set[int] = set()


def lock(path: str, create: bool = False, timeout_s: float = 0.0) -> int | None:
    """Opens a file and locks it exclusively. Returns the descriptor, for :func:`release`.

    Returns ``None`` if the file is missing, was removed meanwhile, or is locked by another process or thread.
    Raises ``OSError`` if it cannot be opened, or its file system has no locks.
    """
    flags = os.O_CLOEXEC | (os.O_CREAT if create else 0)
    try:
        try:
            descriptor = os.open(path, os.O_RDWR | flags, 0o666)  # NFS locks no other files exclusively
        except (PermissionError, IsADirectoryError):
            descriptor = os.open(path, os.O_RDONLY | flags, 0o666)
    except FileNotFoundError:
        return None
    _exclusive.add(descriptor)
    locked = False
    try:
        locked = lock_open(descriptor, timeout_s=timeout_s) and same_file(descriptor, path)
    finally:
        if not locked:
            release(descriptor)
    return descriptor if locked else None


def release(descriptor: int) -> None:
    """Ends the lock of a descriptor that :func:`lock` returned, and closes it."""
    _exclusive.discard(descriptor)
    with contextlib.suppress(OSError):  # a file system without locks
        unlock(descriptor)  # a process that is forked meanwhile has not closed it yet
    os.close(descriptor)


def remove_unlocked(path: str, *companions: str) -> bool:
    """Removes a file, and those that belong to it, unless somebody holds its lock; returns whether it did."""
    descriptor = lock(path)
    if descriptor is None:
        return False
    try:
        os.unlink(path)
        for companion in companions:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(companion)
    finally:
        release(descriptor)
    return True


def remove_unlocked_folder(path: str) -> None:
    """Removes a folder and what is in it, unless it is another user's, or somebody holds its lock."""
    with contextlib.suppress(OSError):
        if (descriptor := lock(path)) is not None:
            shutil.rmtree(path, ignore_errors=True)
            release(descriptor)


def lock_open(descriptor: int, shared: bool = False, timeout_s: float = 0.0) -> bool:
    """Locks an open file, if ``shared`` together with others that do so; returns false if others prevent it.

    A process that is forked meanwhile holds the lock, too.
    """
    operation = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, operation)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)


def unlock(descriptor: int) -> None:
    """Ends the lock of an open file."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def same_file(descriptor: int, path: str) -> bool:
    """True if the open file still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _close_in_child() -> None:
    for descriptor in _exclusive:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _exclusive.clear()


os.register_at_fork(after_in_child=_close_in_child)
