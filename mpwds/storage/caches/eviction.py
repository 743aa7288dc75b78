"""Clean-up of a directory of cached files, as webdataset's users call it themselves."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from mpwds.storage.caches.files import mark_of, partials, shards
from mpwds.storage.caches.locks import same_file, try_exclusive


class LRUCleanup:
    """Removes files of a directory, the least recently used first, until the rest is small enough.

    ``ShardCache(directory, size_bytes)`` keeps its size by itself; this is for directories that
    are filled in other ways. *Any* file of the directory may be removed, whoever put it there, except what a
    ``ShardCache`` is reading or filling at the moment.

    Args:
        cache_dir: The directory. What is in its subdirectories counts as well.
        cache_size: Bytes that may remain.
        keyfn: When a file was used, from its path: the least goes first.
        verbose: Tell on standard error what is removed.
        interval: Seconds within which further calls do nothing; ``None`` for none.

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
        """Makes it another directory.

        Args:
            cache_dir: The directory.
        """
        self.cache_dir = cache_dir

    def cleanup(self) -> None:
        """Removes files until the rest is small enough; a directory that does not exist is small enough.

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
        files = [(os.path.join(directory, name), status.st_size) for name, status in shards(directory)]
        files += [(path, status.st_size) for path, status in partials(directory)]
        total = sum(size for _, size in files)
        if total > self.cache_size:
            for _, path, size in sorted(self._by_use(files), key=lambda file: file[0]):
                if total <= self.cache_size:
                    break
                total -= size * self._remove(directory, path)
        self.last_run = now

    def _by_use(self, files: list[tuple[str, int]]) -> list[tuple[Any, str, int]]:
        keyed = []
        for path, size in files:
            with contextlib.suppress(FileNotFoundError):  # removed by another process meanwhile
                keyed.append((self.keyfn(path), path, size))
        return keyed

    def _remove(self, directory: str, path: str) -> bool:
        """Removes a file unless it is in use; returns whether it is gone."""
        try:
            with open(path, "rb") as file:
                if not try_exclusive(file.fileno()) or not same_file(file.fileno(), path):
                    return False
                if self.verbose:
                    print(f"# deleting {path}", file=sys.stderr)
                os.unlink(path)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(mark_of(directory, os.path.relpath(path, directory)))
        except FileNotFoundError:
            pass
        return True
