"""The shard cache, by webdataset's module name."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from typing import Any

from mpwds.pipeline.sources.opening import FileCache, StreamingOpen
from mpwds.storage.caches.eviction import files_in, remove
from mpwds.storage.caches.names import url_to_cache_name
from mpwds.storage.tar.check import check_tar_format

__all__ = [
    "FileCache",
    "LRUCleanup",
    "StreamingOpen",
    "check_tar_format",
    "pipe_cleaner",
    "url_to_cache_name",
]

_REMOTE = re.compile(r"(https?|hdfs|gs|ais|s3):")


def pipe_cleaner(spec: str) -> str:
    """The URL that a ``pipe:`` command probably reads: its first word that is a URL.

    Args:
        spec: A ``pipe:`` URL; any other is returned unchanged.

    Returns:
        The URL, or the command if no word of it is a URL.

    Source:
        ``webdataset.cache.pipe_cleaner``.

    Example:
        >>> pipe_cleaner("pipe:curl -s -L https://host/000.tar || true")
        'https://host/000.tar'
    """
    if not spec.startswith("pipe:"):
        return spec
    command = spec[len("pipe:") :]
    words = (word.strip("'\"") for word in command.split(" "))
    return next(filter(_REMOTE.match, words), command)


class LRUCleanup:
    """Removes files of a directory, the least recently used first, until the rest is small enough.

    ``ShardCache(directory, size_bytes)`` keeps its size by itself; this is for directories that are filled in
    other ways. It removes *any* file, except one that a ``ShardCache`` is reading.

    Args:
        cache_dir: The directory; its subdirectories count as well.
        cache_size: Bytes that may remain.
        keyfn: Called with a path; files with the smallest result go first.
        verbose: Print on standard error which files are removed.
        interval: Seconds after a clean-up in which :meth:`cleanup` does nothing; ``None`` for 0.

    Source:
        ``webdataset.cache.LRUCleanup``.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     for name in ("old", "new"):
        ...         with open(os.path.join(directory, name), "wb") as file:
        ...             written = file.write(bytes(1000))
        ...     LRUCleanup(directory, 1500, keyfn=lambda path: "old" not in path).cleanup()
        ...     os.listdir(directory)
        ['new']
    """

    def __init__(
        self,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: float = int(1e12),
        keyfn: Callable[[str], Any] = os.path.getctime,
        verbose: bool = False,
        interval: float | None = 30,
    ) -> None:
        self.cache_dir = cache_dir
        self.cache_size = cache_size
        self.keyfn = keyfn
        self.verbose = verbose
        self.interval = interval
        self.last_run = 0.0

    def set_cache_dir(self, cache_dir: str | os.PathLike[str]) -> None:
        """Sets the directory."""
        self.cache_dir = cache_dir

    def cleanup(self) -> None:
        """Removes files until the rest is small enough; does nothing if the directory does not exist.

        Raises:
            ValueError: No directory was given.
            PermissionError: A file may not be removed.
        """
        if self.cache_dir is None:
            raise ValueError("LRUCleanup: no directory to clean up: give cache_dir or call set_cache_dir")
        now = time.time()
        if self.interval is not None and now - self.last_run < self.interval:
            return
        directory = os.fspath(self.cache_dir)
        files = []
        for name, status in files_in(directory):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                files.append((self.keyfn(os.path.join(directory, name)), name, status.st_size))
        total = sum(size for _, _, size in files)
        for _, name, size in sorted(files, key=lambda file: file[0]):
            if total <= self.cache_size:
                break
            if remove(directory, name, self.verbose):
                total -= size
        self.last_run = now
