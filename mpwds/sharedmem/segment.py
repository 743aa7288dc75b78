"""Nameless shared memory: a file descriptor that other processes can be handed and map."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import TypeVar

from mpwds.errors import SharedMemoryError
from mpwds.sharedmem import control_group

PAGE_NBYTES = 4096

Mapping = TypeVar("Mapping", bound=mmap.mmap)


def create(nbytes: int) -> int:
    """A new segment of ``nbytes`` bytes, which takes no memory until :func:`commit`.

    It is a ``memfd``; where the system has none, POSIX shared memory whose name is removed at once.
    Either way it has no name, so nothing is left behind when the last process that holds it ends, and
    the size of ``/dev/shm`` does not matter to a ``memfd``.

    Args:
        nbytes: Size in bytes, above 0.

    Returns:
        A file descriptor, closed on exec; the caller closes it.

    Raises:
        SharedMemoryError: The system refuses to make it.

    Example:
        >>> descriptor = create(8192)
        >>> os.fstat(descriptor).st_size
        8192
        >>> os.close(descriptor)
    """
    try:
        descriptor = _open_nameless()
    except OSError as error:
        raise _refused(nbytes, error) from error
    try:
        os.ftruncate(descriptor, nbytes)
    except OSError as error:
        os.close(descriptor)
        raise _refused(nbytes, error) from error
    return descriptor


def commit(descriptor: int, offset: int, nbytes: int) -> None:
    """Gives a range of a segment its memory now, so that writing there cannot fail later.

    Without this a machine that runs out of memory answers a write with SIGBUS, which no one can
    handle. The memory that the machine or the container has left is looked at first, because asking
    for more than that calls the kernel's out-of-memory killer instead of failing.

    Raises:
        SharedMemoryError: There is not that much memory left.

    Example:
        >>> descriptor = create(8192)
        >>> commit(descriptor, 0, 4096)
        >>> os.close(descriptor)
    """
    available = available_nbytes()
    if available is not None and nbytes > available:
        raise SharedMemoryError(
            f"no memory for {_size(nbytes)} of shared memory, only {_size(available)} are left: "
            "use smaller batches, fewer workers or a lower prefetch"
        )
    try:
        os.posix_fallocate(descriptor, offset, nbytes)
    except OSError as error:
        raise _refused(nbytes, error) from error


def map(descriptor: int, nbytes: int) -> mmap.mmap:
    """A segment's memory, shared with every process that maps it; unmapped when nothing refers to it.

    Raises:
        SharedMemoryError: There is no room for it in this process' address space, or no mapping left.
    """
    return map_as(mmap.mmap, descriptor, nbytes)


def map_as(kind: type[Mapping], descriptor: int, nbytes: int) -> Mapping:
    """As :func:`map`; the mapping is of class ``kind``."""
    try:
        return kind(descriptor, nbytes)
    except OSError as error:
        raise _refused(nbytes, error) from error


def available_nbytes() -> int | None:
    """Bytes of memory that can still be had without swapping, or ``None`` where nothing tells.

    The lower of what the machine has left (``MemAvailable``) and what this process' control groups
    (a container, say) may still take; their page cache counts as free.
    """
    limits = [limit for limit in (_machine_has_left(), control_group.memory_left()) if limit is not None]
    return min(limits, default=None)


def _open_nameless() -> int:
    if hasattr(os, "memfd_create"):
        try:
            return os.memfd_create("mpwds", os.MFD_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EPERM):
                raise
    import _posixshmem
    import secrets

    name = f"/mpwds-{os.getpid()}-{secrets.token_hex(8)}"
    descriptor: int = _posixshmem.shm_open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode=0o600)
    _posixshmem.shm_unlink(name)
    return descriptor


def _machine_has_left() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def _refused(nbytes: int, error: OSError) -> SharedMemoryError:
    return SharedMemoryError(
        f"the system refused {_size(nbytes)} of shared memory ({error.strerror}): use smaller batches, "
        "fewer workers or a lower prefetch, or raise the limit (ulimit -n, ulimit -f, ulimit -v, the "
        "container's memory)"
    )


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB"
