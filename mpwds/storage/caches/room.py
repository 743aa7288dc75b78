"""Room in a cache directory: reserved for what is fetched, made by removing what was not used for longest."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator

from mpwds.storage.caches.files import lock_path, mark_of, partials, shards
from mpwds.storage.caches.locks import close, exclusively, keep_from_forks, same_file, try_exclusive


class CacheRoom:
    """Keeps the files of a cache directory below a size, together with all processes that use it.

    A process that fetches a shard reserves what it is about to write. Where that exceeds the size, shards are
    removed, the one first that was not used for longest: only such that a cache fetched, none that is being
    read or fetched. Files that were put into the directory by hand count, and stay.

    Args:
        directory: The cache directory.
        size_bytes: Bytes that its files may have; negative for no limit.
        verbose: Tell on standard error what is removed.
    """

    def __init__(self, directory: str, size_bytes: int, verbose: bool = False) -> None:
        self._directory = directory
        self._size = size_bytes
        self._verbose = verbose

    def reserve(self, partial: str, size: int) -> bool:
        """Makes room for a partial file to grow.

        Args:
            partial: Its path; the file is there.
            size: Bytes that it is to have.

        Returns:
            Whether there is room. Where there is not, nothing has been removed.

        Raises:
            OSError: The cache's lock cannot be had.
        """
        if self._size < 0:
            return True
        if size > self._size:
            return False
        with exclusively(lock_path(self._directory)) as lock:
            reserved = _reservations(lock)
            used = {path: status.st_size for path, status in _living_partials(self._directory)}
            kept = {path: size for path, size in reserved.items() if path in used}
            growing = sum(max(used[path], kept.get(path, 0)) for path in used if path != partial)
            if not self._remove_down_to(self._size - size - growing):
                return False
            _write_reservations(lock, {**kept, partial: size})
        return True

    def remove_stale(self) -> None:
        """Removes partial files whose process is gone."""
        if any(partials(self._directory)):
            with exclusively(lock_path(self._directory)):
                for _ in _living_partials(self._directory):
                    pass

    def _remove_down_to(self, allowed: int) -> bool:
        """Removes shards until the rest has at most ``allowed`` bytes; none if that cannot be reached."""
        total = 0
        removable = []
        for name, status in shards(self._directory):
            total += status.st_size
            with contextlib.suppress(FileNotFoundError):  # no mark: it was put there by hand
                last_use = os.stat(mark_of(self._directory, name)).st_mtime_ns
                removable.append((last_use, name, status.st_size))
        removable.sort()
        with contextlib.ExitStack() as stack:
            chosen = []
            for _, name, size in removable:
                if total <= allowed:
                    break
                if stack.enter_context(_unused(os.path.join(self._directory, name))):
                    chosen.append(name)
                    total -= size
            if total > allowed:
                return False
            for name in chosen:
                self._remove(name)
        return True

    def _remove(self, name: str) -> None:
        path = os.path.join(self._directory, name)
        if self._verbose:
            print(f"# deleting {path}", file=sys.stderr)
        os.unlink(path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(mark_of(self._directory, name))


@contextlib.contextmanager
def _unused(path: str) -> Iterator[bool]:
    """Locks a file if nobody else has; gives whether that succeeded."""
    try:
        descriptor = _open(path)
    except OSError:
        yield False
        return
    keep_from_forks(descriptor)
    try:
        yield try_exclusive(descriptor) and same_file(descriptor, path)
    finally:
        close(descriptor)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)  # network file systems lock only what may be written
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _living_partials(directory: str) -> Iterator[tuple[str, os.stat_result]]:
    """The partial files that a process is filling; others are removed."""
    for path, status in partials(directory):
        with _unused(path) as stale:
            if stale:
                os.unlink(path)
            else:
                yield path, status


def _reservations(lock: int) -> dict[str, int]:
    """The sizes that processes have reserved, by partial file; kept in the lock file."""
    try:
        found = json.loads(os.pread(lock, os.fstat(lock).st_size, 0) or b"{}")
    except ValueError:  # its writer was killed while it wrote
        return {}
    return {str(path): int(size) for path, size in found.items()} if isinstance(found, dict) else {}


def _write_reservations(lock: int, reserved: dict[str, int]) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, json.dumps(reserved).encode(), 0)
