"""Nameless shared memory: a file descriptor that other processes can be sent and map.

``SharedMemoryError`` says that the system has no memory, descriptor or address space left.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from mpwds.errors import SharedMemoryError

PAGE_NBYTES = 4096

_SMALL_NBYTES = 64 << 10

Mapping = TypeVar("Mapping", bound=mmap.mmap)


def create(nbytes: int) -> int:
    """A new segment, by its descriptor (:func:`open_nameless`). It takes no memory until :func:`commit`."""
    descriptor = -1
    try:
        descriptor = open_nameless()
        os.ftruncate(descriptor, nbytes)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise _refused(nbytes, error) from error
    return descriptor


def commit(descriptor: int, offset: int, nbytes: int) -> None:
    """Gives a range of a segment its memory now, so that writing there cannot fail later.

    Without this, a write on a machine that is out of memory ends in SIGBUS, which no code can handle. Above
    64 kB, the memory that the machine or the container has left is checked first: the kernel answers a
    request for more than that with its out-of-memory killer, not with an error.
    """
    available = available_nbytes() if nbytes > _SMALL_NBYTES else None
    if available is not None and nbytes > available:
        raise SharedMemoryError(
            f"no memory for {nbytes / 1e6:,.1f} MB of shared memory, only {available / 1e6:,.1f} MB "
            "are left: use smaller batches, fewer workers or a lower prefetch"
        )
    try:
        os.posix_fallocate(descriptor, offset, nbytes)
    except OSError as error:
        raise _refused(nbytes, error) from error


def map(descriptor: int, nbytes: int) -> mmap.mmap:
    """A segment's memory, shared with every process that maps it; unmapped when nothing refers to it."""
    return map_as(mmap.mmap, descriptor, nbytes)


def map_as(kind: type[Mapping], descriptor: int, nbytes: int) -> Mapping:
    """As :func:`map`; the mapping is of class ``kind``."""
    try:
        return kind(descriptor, nbytes)
    except OSError as error:
        raise _refused(nbytes, error) from error


def available_nbytes() -> int | None:
    """Bytes of memory available without swapping; ``None`` if the system does not say.

    The lower of what the machine has left (``MemAvailable``) and what this process' control groups (such as a
    container's) may still take. Page cache counts as free.
    """
    limits = (_machine_has_left(), groups_have_left())
    return min((limit for limit in limits if limit is not None), default=None)


def open_nameless(label: str = "mpwds") -> int:
    """A new file in memory, which is gone when the last process that holds it ends.

    It is a ``memfd`` or, where the system has none, POSIX shared memory whose name is removed at once. The
    size of ``/dev/shm`` does not limit a ``memfd``. ``label`` is in what ``/proc/self/fd`` shows of it.

    Returns:
        A file descriptor, closed on exec; the caller closes it.

    Raises:
        OSError: The system refuses it.
    """
    if hasattr(os, "memfd_create"):
        try:
            return os.memfd_create(label, os.MFD_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EPERM):
                raise
    import _posixshmem
    import secrets

    name = f"/{label}-{os.getpid()}-{secrets.token_hex(8)}"
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


# Where a control group shows its limit and the memory it has taken, and its page cache in `memory.stat`.
_VERSION_1 = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"
_VERSION_2 = "memory.max", "memory.current", "inactive_file", "active_file"


def groups_have_left() -> int | None:
    """Bytes that this process' control group and its parents may still take; ``None`` without a limit."""
    answers = (_group_has_left(folder, names) for folder, names in _groups())
    return min((left for left in answers if left is not None), default=None)


def _groups() -> Iterator[tuple[Path, tuple[str, str, str, str]]]:
    """This process' group and its parents, as far as they can be seen from here."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            mount, names = Path("/sys/fs/cgroup"), _VERSION_2
        elif "memory" in controllers.split(","):
            mount, names = Path("/sys/fs/cgroup/memory"), _VERSION_1
        else:
            continue
        # In a container, the mount may be the container's own group, and the path one that exists outside.
        folder = mount / group.lstrip("/")
        for parent in (folder, *folder.parents):
            yield parent, names
            if parent == mount:
                break


def _group_has_left(group: Path, names: tuple[str, str, str, str]) -> int | None:
    limit, taken, inactive_cache, active_cache = names
    try:
        left = int((group / limit).read_text()) - int((group / taken).read_text())
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return max(0, left + int(counts[inactive_cache]) + int(counts[active_cache]))
    except (OSError, ValueError, KeyError):  # the group does not exist here, or has no limit
        return None


def _refused(nbytes: int, error: OSError) -> SharedMemoryError:
    return SharedMemoryError(
        f"the system refused {nbytes / 1e6:,.1f} MB of shared memory ({error.strerror}): use smaller "
        "batches, fewer workers or a lower prefetch, or raise the limit (ulimit -n, ulimit -f, ulimit -v, "
        "the container's memory)"
    )
