"""The files of one shard in a cache directory.

::

    000.tar                               a complete shard: the raw bytes that were fetched
    .mpwds/000.tar.mark                   size, checksum and time of a shard that the cache fetched; touched
                                          at each use. A shard without a mark was put there by hand
    .mpwds/partial/000.tar.0f1e...partial a shard that is being fetched, locked by the process that fetches it
    .mpwds/lock                           locked while files get names and are removed; notes the bytes in all

A mark gets its name before its shard does, and is removed after it.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from mpwds.storage.caches.eviction import locked_usage
from mpwds.storage.caches.locks import lock_shared, same_file
from mpwds.storage.caches.names import (
    PARTIALS,
    PRIVATE,
    cache_name,
    distinct_name,
    mark_path,
    source_digest,
    url_to_cache_name,
)

_CHUNK_BYTES = 1024 * 1024


class Mark(NamedTuple):
    """What the cache notes about a shard that it fetched.

    Attributes:
        source: ``source_digest`` of its URL.
        size: Its bytes.
        checksum: Their CRC-32.
        written_ns: The file's modification time.
    """

    source: str
    size: int
    checksum: int
    written_ns: int

    def fault(self, descriptor: int) -> str | None:
        """How a file differs from what was fetched, or ``None``. Reads it only if its time differs."""
        status = os.fstat(descriptor)
        if status.st_size != self.size:
            return f"has {status.st_size} bytes and had {self.size} when it was fetched"
        if status.st_mtime_ns == self.written_ns:
            return None
        if _checksum(descriptor) != self.checksum:
            return "was written to after it was fetched, and has other bytes now"
        with contextlib.suppress(OSError):  # another user's file: it is read here each time
            os.utime(descriptor, ns=(status.st_atime_ns, self.written_ns))
        return None


@dataclass(frozen=True)
class CacheEntry:
    """The files of one URL.

    Args:
        directory: The cache directory.
        name: The shard's relative name.
        source: ``source_digest`` of the URL.

    Example:
        >>> CacheEntry.of("/cache", "https://host/000.tar").path
        '/cache/000.tar'
    """

    directory: str
    name: str
    source: str

    @staticmethod
    def of(directory: str, url: str, url_to_name: Callable[[str], str] = url_to_cache_name) -> CacheEntry:
        """The entry of a URL.

        Raises:
            TypeError: The name is not a string.
            ValueError: The name leads out of the directory or is too long.
        """
        return CacheEntry(directory, cache_name(url, url_to_name), source_digest(url))

    @property
    def path(self) -> str:
        """The complete shard."""
        return os.path.join(self.directory, self.name)

    @property
    def mark(self) -> str:
        """The note about the shard."""
        return mark_path(self.directory, self.name)

    @property
    def partial(self) -> str:
        """The shard while it is fetched."""
        name = f"{os.path.basename(self.name)}.{self.source}.partial"
        return os.path.join(self.directory, PRIVATE, PARTIALS, name)

    def chosen(self) -> CacheEntry:
        """This entry, or one of another name if another URL's shard has the name."""
        mark = _read_mark(self.mark)
        if mark is None or mark.source == self.source or not os.path.exists(self.path):
            return self
        return CacheEntry(self.directory, distinct_name(self.name, self.source), self.source)

    def open(self) -> int | None:
        """Opens the complete shard, locked against removal; ``None`` if it is not there.

        A shard that was damaged since it was fetched is removed, with a warning.

        Raises:
            OSError: The directory cannot be used.
        """
        while True:
            entry = self.chosen()
            try:
                descriptor = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                return None
            usable = False
            try:
                lock_shared(descriptor, timeout_s=0.5)  # others lock it exclusively only for a moment
                mark = _read_mark(entry.mark)
                if same_file(descriptor, entry.path):
                    if mark is not None and mark.source != self.source:
                        return None
                    fault = None if mark is None else mark.fault(descriptor)
                    if fault is None:
                        usable = True
                        with contextlib.suppress(OSError):  # no mark, or another user's
                            os.utime(entry.mark)
                        return descriptor
                    entry._remove_damaged(descriptor, fault)
            finally:
                if not usable:
                    os.close(descriptor)

    def publish(self, checksum: int) -> None:
        """Gives the partial file, which is complete, its name; not if a file put there by hand has it.

        Args:
            checksum: CRC-32 of its bytes.

        Raises:
            OSError: The directory cannot be used.
        """
        status = os.stat(self.partial)
        new_mark = self.partial + ".mark"
        with open(new_mark, "w", encoding="ascii") as file:
            json.dump(Mark(self.source, status.st_size, checksum, status.st_mtime_ns)._asdict(), file)
            file.flush()
            os.fsync(file.fileno())
        with locked_usage(self.directory) as usage:
            usage.reserved.pop(os.path.basename(self.partial), None)
            entry = self.chosen()
            if os.path.exists(entry.path):
                os.unlink(new_mark)
                return
            for path in (entry.mark, entry.path):
                os.makedirs(os.path.dirname(path), exist_ok=True)
            os.replace(new_mark, entry.mark)
            os.rename(self.partial, entry.path)
            usage.total += status.st_size

    def _remove_damaged(self, descriptor: int, fault: str) -> None:
        with locked_usage(self.directory) as usage:
            if not same_file(descriptor, self.path):
                return
            usage.total -= os.fstat(descriptor).st_size
            os.unlink(self.path)
            os.unlink(self.mark)
        warnings.warn(f"{self.path} {fault}: it is fetched again", RuntimeWarning, stacklevel=2)


def _read_mark(path: str) -> Mark | None:
    try:
        with open(path, encoding="ascii") as file:
            noted = json.load(file)
        return Mark(
            str(noted["source"]), int(noted["size"]), int(noted["checksum"]), int(noted["written_ns"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _checksum(descriptor: int) -> int:
    checksum = position = 0
    while chunk := os.pread(descriptor, _CHUNK_BYTES, position):
        checksum = zlib.crc32(chunk, checksum)
        position += len(chunk)
    return checksum
