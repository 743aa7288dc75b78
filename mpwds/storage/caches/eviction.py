"""The size of a cache directory, which is kept by removing the least recently used shards.

The lock file notes the bytes of all complete files, so that a fetch need not look at each of them. The space
for a shard that is being fetched is reserved by the size of its partial file, which is sparse at its end.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from mpwds.storage.caches.locks import lock, release
from mpwds.storage.caches.names import PARTIALS, PRIVATE, mark_path, offsets_path

_AHEAD_BYTES = 64 << 20  # reserved at a time, where there is room and the shard's size is unknown
_RECOUNT_S = 600.0
_LOCK_TIMEOUT_S = 60.0


@dataclass
class Usage:
    """The bytes of all complete files in a cache directory, and when they were counted, by ``time.time()``.

    They may be wrong: users add and remove files, and processes are killed. So they are counted again before
    anything is removed, every ten minutes, and when the note cannot be read.
    """

    total: int = 0
    counted_s: float = 0.0


@contextlib.contextmanager
def locked_usage(directory: str) -> Iterator[Usage]:
    """Locks a cache directory, for up to a minute of waiting. Changes of the usage are noted at the end."""
    path = os.path.join(directory, PRIVATE, "lock")
    descriptor = lock(path, create=True, timeout_s=_LOCK_TIMEOUT_S)
    if descriptor is None:
        raise TimeoutError(
            errno.ETIMEDOUT, f"other processes hold the lock for {_LOCK_TIMEOUT_S:.0f} s", path
        )
    try:
        try:
            total, counted_s = json.loads(os.pread(descriptor, 1000, 0))
            usage = Usage(int(total), float(counted_s))
        except (ValueError, TypeError):
            usage = Usage()
        yield usage
        text = json.dumps([usage.total, usage.counted_s]).encode()
        os.pwrite(descriptor, text, 0)
        os.ftruncate(descriptor, len(text))
    finally:
        release(descriptor)


@dataclass(frozen=True)
class SizeLimit:
    """The limit of a cache directory's size (negative for none), which all its processes keep together."""

    directory: str
    size_bytes: int
    verbose: bool = False

    def reserve(self, partial: str, needed: int, size: int | None) -> int:
        """Makes room for a partial file, and returns the bytes that it may have now; 0 if there is no room.

        ``needed`` is the size that it is about to have, ``size`` that of the complete shard, if known.
        """
        if self.size_bytes < 0:
            return sys.maxsize
        needed = max(needed, size or 0)
        with locked_usage(self.directory) as usage:
            if abs(time.time() - usage.counted_s) > _RECOUNT_S:
                self._count(usage)
            free = self.size_bytes - usage.total - self.reserved_beside(partial)
            granted = min(free, needed if size else needed + _AHEAD_BYTES)
            if granted < needed:
                granted = needed if self._evict(usage, partial, needed) else 0
            if granted:
                os.truncate(partial, granted)
        return granted

    def reserved_beside(self, partial: str) -> int:
        """The bytes that other partial files may have."""
        folder = os.path.join(self.directory, PRIVATE, PARTIALS)
        own = os.path.basename(partial)
        return sum(status.st_size for name, status in files_in(folder) if name != own)

    def _evict(self, usage: Usage, partial: str, needed: int) -> bool:
        """Removes shards until ``needed`` bytes are free; returns whether that succeeded."""
        remove_abandoned(self.directory)
        allowed = self.size_bytes - needed - self.reserved_beside(partial)
        shards = sorted(self._count(usage))
        if usage.total - sum(size for _, _, size in shards) > allowed:
            return False
        removed = 0
        for _, name, size in shards:
            # A sixteenth goes at once, so that the shards are rarely counted.
            if usage.total <= allowed and (removed == 0 or removed >= len(shards) // 16):
                break
            if remove(self.directory, name, self.verbose):
                usage.total -= size
                removed += 1
        return usage.total <= allowed

    def _count(self, usage: Usage) -> list[tuple[int, str, int]]:
        """Counts the files' bytes; returns last use, name and size of each that the cache fetched."""
        usage.total = 0
        usage.counted_s = time.time()
        shards = []
        for name, status in files_in(self.directory):
            usage.total += status.st_size
            with contextlib.suppress(FileNotFoundError):
                shards.append((os.stat(mark_path(self.directory, name)).st_mtime_ns, name, status.st_size))
        return shards


def files_in(directory: str, below: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Relative name and status of a cache directory's files, without private ones and symbolic links."""
    try:
        entries = list(os.scandir(os.path.join(directory, below)))
    except FileNotFoundError:
        return
    for entry in entries:
        name = os.path.join(below, entry.name)
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            if entry.is_file(follow_symlinks=False):
                yield name, entry.stat(follow_symlinks=False)
            elif entry.is_dir(follow_symlinks=False) and name != PRIVATE:
                yield from files_in(directory, name)


def remove(directory: str, name: str, verbose: bool = False) -> bool:
    """Removes a file of a cache directory unless it is being read; returns whether it is gone."""
    path = os.path.join(directory, name)
    descriptor = lock(path)
    if descriptor is None:
        return not os.path.exists(path)
    try:
        if verbose:
            print(f"# deleting {path}", file=sys.stderr)
        os.unlink(path)
        for companion in (mark_path(directory, name), offsets_path(directory, name)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(companion)
    finally:
        release(descriptor)
    return True


def remove_abandoned(directory: str) -> None:
    """Removes the partial files of processes that were killed."""
    folder = os.path.join(directory, PRIVATE, PARTIALS)
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if name.endswith(".partial") and (descriptor := lock(path)) is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
                os.unlink(path + ".mark")
            release(descriptor)
