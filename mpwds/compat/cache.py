"""webdataset.cache: shards on a local disk, and stages that open shards, for pipelines of small parts."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mpwds.pipeline.handlers import Handler, check_handler, reraise_exception
from mpwds.pipeline.sources.shard_stream import file_of, url_of
from mpwds.storage.caches.eviction import files_in, remove
from mpwds.storage.caches.names import url_to_cache_name as url_to_cache_name
from mpwds.storage.caches.shard_cache import ShardCache
from mpwds.storage.streams.gopen import open_at
from mpwds.storage.tar.check import check_tar_format as check_tar_format
from mpwds.storage.tar.check import is_whole_shard

_REMOTE = re.compile(r"(https?|hdfs|gs|ais|s3):")


def pipe_cleaner(spec: str) -> str:
    """The URL that a ``pipe:`` command probably reads: its first word that is a URL.

    Without such a word it is the command; any other URL is returned unchanged.

    Example:
        >>> pipe_cleaner("pipe:curl -s -L https://host/000.tar || true")
        'https://host/000.tar'
    """
    if not spec.startswith("pipe:"):
        return spec
    command = spec[len("pipe:") :]
    words = (word.strip("'\"") for word in command.split(" "))
    return next(filter(_REMOTE.match, words), command)


class StreamingOpen:
    """Stage that opens shards: ``{"url": ..., "stream": ...}``, and ``local_path`` where it is a file.

    ``mpwds.tar_file_expander`` and ``mpwds.group_by_keys`` make samples of them. ``tarfile_to_samples`` does
    the same in one stage, faster and with addresses.

    Args:
        verbose: Without effect.
        handler: What to do about a shard that cannot be opened; raises by default.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     [opened] = StreamingOpen()([file.name])
        ...     opened["stream"].close()
        >>> sorted(opened)
        ['local_path', 'stream', 'url']
    """

    def __init__(self, verbose: bool = False, handler: Handler = reraise_exception) -> None:
        check_handler("StreamingOpen", handler)
        self.verbose = verbose
        self.handler = handler

    def __call__(self, urls: Iterable[Any]) -> Iterator[dict[str, Any]]:
        for shard in urls:
            try:
                url = url_of(shard)
                opened = self._open(url)
            except Exception as error:
                if self.handler(error):
                    continue
                return
            yield {"url": url, **opened}

    def _open(self, url: str) -> dict[str, Any]:
        stream = open_at(url)
        path = file_of(url)
        return {"stream": stream} if path is None else {"stream": stream, "local_path": path}


class FileCache(StreamingOpen):
    """Stage that opens shards from a cache on a local disk: a :class:`StreamingOpen` that keeps them.

    It waits until the file at ``local_path`` is complete; ``WebDataset(cache_dir=...)`` reads while it fills.
    Local files are opened where they are. :class:`mpwds.ShardCache` does the work.

    Args:
        cache_dir: The directory, created when it is needed; by default the environment variable
            ``WDS_CACHE``, or ``./_cache``.
        url_to_name: Takes a shard's URL, returns its name in the directory.
        verbose: Whether to print what is fetched and removed.
        validator: Takes a file's path, returns whether to keep it. By default complete tar archives are
            kept; ``None`` keeps everything.
        handler: As for ``StreamingOpen``.
        cache_size: Size limit in bytes; no limit below 1.
        cache_cleanup_interval: Without effect.

    Example:
        >>> FileCache("/tmp").cache_dir
        '/tmp'
    """

    def __init__(
        self,
        cache_dir: str | os.PathLike[str] | None = None,
        *,
        url_to_name: Callable[[str], str] = url_to_cache_name,
        verbose: bool = False,
        validator: Callable[[str], Any] | None = is_whole_shard,
        handler: Handler = reraise_exception,
        cache_size: float = -1,
        cache_cleanup_interval: float = 30,
    ) -> None:
        super().__init__(verbose, handler)
        if cache_dir is None:
            cache_dir = os.environ.get("WDS_CACHE", "./_cache")
        self.cache_dir = os.fspath(cache_dir)
        size = cache_size if cache_size > 0 else -1
        self._cache = ShardCache(self.cache_dir, size, url_to_name, verbose, validator=validator)

    def _open(self, url: str) -> dict[str, Any]:
        if url == "-" or file_of(url) is not None:
            return super()._open(url)
        return {"stream": self._cache.open_whole(url), "local_path": self._cache.path(url)}


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
        self.cache_dir = cache_dir

    def cleanup(self) -> None:
        """Removes files until the rest is small enough; does nothing if the directory does not exist."""
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
