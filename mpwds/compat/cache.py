"""webdataset.cache: shards on a local disk, and stages that open shards, for pipelines of small parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mpwds.pipeline.handlers import Handler, check_handler, reraise_exception
from mpwds.pipeline.sources.shard_stream import file_of, url_of
from mpwds.storage.caches.eviction import LRUCleanup as LRUCleanup
from mpwds.storage.caches.names import pipe_cleaner as pipe_cleaner
from mpwds.storage.caches.names import url_to_cache_name as url_to_cache_name
from mpwds.storage.caches.shard_cache import ShardCache
from mpwds.storage.streams.gopen import open_at
from mpwds.storage.tar.check import check_tar_format as check_tar_format
from mpwds.storage.tar.check import is_whole_shard


class StreamingOpen:
    """Stage that opens shards: ``{"url": ..., "stream": ...}``, and ``local_path`` where it is a file.

    ``mpwds.tar_file_expander`` and ``mpwds.group_by_keys`` make samples of them. ``tarfile_to_samples`` does
    the same in one stage, faster and with addresses.

    Args:
        verbose: Without effect.
        handler: What to do about a shard that cannot be opened; raises by default.

    Source:
        ``webdataset.cache.StreamingOpen``.

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

    The stream follows the download; the file at ``local_path`` appears when it is complete. Local files are
    opened where they are. :class:`mpwds.ShardCache` does the work.

    Args:
        cache_dir: The directory, created when it is needed; by default the environment variable
            ``WDS_CACHE``, or ``./_cache``.
        url_to_name: Takes a shard's URL, returns its name in the directory.
        verbose: Whether to print what is fetched and removed.
        validator: Takes a file's path, returns whether to keep it. By default complete tar archives are
            kept; ``None`` keeps everything.
        handler: What to do about a shard that cannot be opened; raises by default.
        cache_size: Size limit in bytes; no limit below 1.
        cache_cleanup_interval: Without effect.

    Source:
        ``webdataset.cache.FileCache``.

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
        return {"stream": self._cache.open(url), "local_path": self._cache.path(url)}
