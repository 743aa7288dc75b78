"""The files of a shard cache: shards under their names, and beside them what the cache notes about them.

::

    000.tar                          a shard, complete: raw bytes as they were downloaded
    .mpwds/000.tar.mark              its size, checksum and time, and a digest of its URL; touched at each
                                     use. A shard without one was put there by hand, and is used as it is
    .mpwds/000.tar.0f1e2d3c.partial  a shard on its way, locked by the process that fetches it
    .mpwds/lock                      locked while room is made and while a shard gets its name

A mark is written before its shard gets its name, and removed after the shard, so a shard that the cache
fetched is never without one.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from mpwds.storage.caches.locks import exclusively
from mpwds.storage.caches.names import PRIVATE, cache_name, distinct_name, source_digest

_PARTIAL = ".partial"
_MARK = ".mark"
_CHUNK_BYTES = 1024 * 1024


class Mark(NamedTuple):
    """What the cache notes about a shard that it fetched.

    Attributes:
        source: ``source_digest`` of its URL.
        size: Its bytes.
        checksum: Their CRC-32.
        written_ns: When the last of them was written, by the file's own time.
    """

    source: str
    size: int
    checksum: int
    written_ns: int

    def fault(self, descriptor: int) -> str | None:
        """How a file differs from what was fetched; ``None`` if it does not.

        Only one that was written to since, or copied, is read for that.
        """
        status = os.fstat(descriptor)
        if status.st_size != self.size:
            return f"has {status.st_size} bytes and had {self.size} when it was fetched"
        if status.st_mtime_ns == self.written_ns:
            return None
        if _checksum(descriptor) != self.checksum:
            return "was written to since it was fetched, and holds other bytes"
        with contextlib.suppress(OSError):  # of another user: it will be read for that each time
            os.utime(descriptor, ns=(status.st_atime_ns, self.written_ns))
        return None


@dataclass(frozen=True)
class CacheFiles:
    """The files that belong to one URL.

    Args:
        directory: The cache directory.
        name: The shard's name in it, relative.
        source: ``source_digest`` of the URL.

    Example:
        >>> files = CacheFiles.of("/cache", "https://host/000.tar")
        >>> files.path, files.partial
        ('/cache/000.tar', '/cache/.mpwds/000.tar.4086bff7.partial')
    """

    directory: str
    name: str
    source: str

    @staticmethod
    def of(directory: str, url: str, url_to_name: Callable[[str], str] | None = None) -> CacheFiles:
        """Those of a URL.

        Args:
            directory: The cache directory.
            url: The URL.
            url_to_name: As for :func:`cache_name`; ``None`` for its default.
        """
        name = cache_name(url) if url_to_name is None else cache_name(url, url_to_name)
        return CacheFiles(directory, name, source_digest(url))

    @property
    def path(self) -> str:
        """The shard."""
        return os.path.join(self.directory, self.name)

    @property
    def partial(self) -> str:
        """The shard while it is fetched. Two URLs with the same name have two."""
        return os.path.join(self.directory, PRIVATE, f"{self.name}.{self.source[:8]}{_PARTIAL}")

    @property
    def mark(self) -> str:
        """The note about the shard."""
        return mark_of(self.directory, self.name)

    def other(self) -> CacheFiles:
        """Those to use where the name is taken by another URL's shard."""
        return CacheFiles(self.directory, distinct_name(self.name, self.source), self.source)

    def make_directories(self) -> None:
        """Makes the directories that the files are in."""
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        os.makedirs(os.path.dirname(self.partial), exist_ok=True)

    def publish(self, checksum: int) -> str | None:
        """Gives the partial file its name, unless another file has it by right.

        Args:
            checksum: CRC-32 of its bytes, all of which are on disk.

        Returns:
            The shard's path; ``None`` if it is there already, fetched by another process or put there by
            hand.
        """
        with exclusively(lock_path(self.directory)):
            for files in (self, self.other()):
                mark = read_mark(files.mark)
                if os.path.exists(files.path):
                    if mark is None or _is_as_noted(files.path, mark, self.source):
                        return None
                    if mark.source != self.source:
                        continue
                status = os.stat(self.partial)
                _write_mark(files.mark, Mark(self.source, status.st_size, checksum, status.st_mtime_ns))
                os.rename(self.partial, files.path)
                return files.path
        return None


def lock_path(directory: str) -> str:
    """The lock of a cache directory."""
    return os.path.join(directory, PRIVATE, "lock")


def mark_of(directory: str, name: str) -> str:
    """The mark of the shard ``name``."""
    return os.path.join(directory, PRIVATE, name + _MARK)


def read_mark(path: str) -> Mark | None:
    """A mark, or ``None`` if there is none, or what is there is none."""
    try:
        with open(path, encoding="ascii") as file:
            fields = json.load(file)
        return Mark(
            str(fields["source"]), int(fields["size"]), int(fields["checksum"]), int(fields["written_ns"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def shards(directory: str) -> Iterator[tuple[str, os.stat_result]]:
    """The names of the regular files of a cache that are no business of its own, and what they are.

    Symbolic links are left out: what they lead to is not in the cache.
    """
    for path, status in _files(directory, skip=os.path.join(directory, PRIVATE)):
        yield os.path.relpath(path, directory), status


def partials(directory: str) -> Iterator[tuple[str, os.stat_result]]:
    """The paths of a cache's partial files, and what they are."""
    for path, status in _files(os.path.join(directory, PRIVATE)):
        if path.endswith(_PARTIAL):
            yield path, status


def _files(directory: str, skip: str = "") -> Iterator[tuple[str, os.stat_result]]:
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if entry.path != skip:
                yield from _files(entry.path)
        elif entry.is_file(follow_symlinks=False):
            with contextlib.suppress(FileNotFoundError):  # another process may remove files meanwhile
                yield entry.path, entry.stat(follow_symlinks=False)


def _is_as_noted(path: str, mark: Mark, source: str) -> bool:
    status = os.stat(path)
    return mark == (source, status.st_size, mark.checksum, status.st_mtime_ns)


def _checksum(descriptor: int) -> int:
    checksum = position = 0
    while chunk := os.pread(descriptor, _CHUNK_BYTES, position):
        checksum = zlib.crc32(chunk, checksum)
        position += len(chunk)
    return checksum


def _write_mark(path: str, mark: Mark) -> None:
    """Writes a mark so that it is there before the shard is, whatever happens to the machine."""
    fields: dict[str, Any] = mark._asdict()
    temporary = path + ".new"  # under the cache's lock: nobody else writes it
    with open(temporary, "w", encoding="ascii") as file:
        json.dump(fields, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
