"""The shard cache, by webdataset's module name."""

from __future__ import annotations

from mpwds.pipeline.sources.opening import FileCache, StreamingOpen
from mpwds.storage.caches.eviction import LRUCleanup
from mpwds.storage.caches.names import pipe_cleaner, url_to_cache_name
from mpwds.storage.tar.check import check_tar_format

__all__ = [
    "FileCache",
    "LRUCleanup",
    "StreamingOpen",
    "check_tar_format",
    "pipe_cleaner",
    "url_to_cache_name",
]
