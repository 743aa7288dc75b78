"""Shards on a local disk: a node fetches each one once."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable
from typing import BinaryIO

from mpwds.errors import ShardError, StreamError
from mpwds.storage.caches import fetch
from mpwds.storage.caches.directory import BUFFER_BYTES, CacheEntry, SizeLimit
from mpwds.storage.caches.locks import unlock
from mpwds.storage.streams.gopen import open_at
from mpwds.storage.streams.urls import (
    absolute_path,
    is_local,
    local_path,
    url_to_cache_name,
    without_credentials,
)
from mpwds.storage.tar.entries import is_whole_shard


class UncacheableShard(StreamError):
    """A shard is needed whole, and the cache cannot keep it."""


class ShardCache:
    """A directory that keeps shards, for all processes of a machine.

    :meth:`open` reads a kept shard from its file. It fetches any other in a thread, and its stream follows
    the growing file; so do further readers of the same process. Other processes wait until the file is
    complete. If the process that fetches dies, a waiting one takes over.

    It opens local files where they are, and uses a shard that you put into the directory under its name. It
    keeps the raw bytes: compressed shards stay compressed. Two URLs that have the same name
    (``train/000.tar`` and ``val/000.tar`` do, by default) get different files.

    A shard that cannot be kept is streamed, with one warning: the shard is larger than the cache, the disk is
    full, the directory cannot be written, or the validator refuses the bytes.

    Objects can be pickled, and used in forks. If you close a stream early, fetching continues in the
    background, for up to ``prefetch_shards`` shards; it ends with the process.

    The directory should be on a local disk, and its file system needs ``flock``. Containers may share it,
    under different paths. On NFS without server locks (``nolock``, ``local_lock``), each host fetches on its
    own and may remove a shard that another host reads.

    Args:
        directory: Where to keep shards; created when it is needed.
        size_bytes: Bytes that its files may have in all; negative for no limit. The least recently used
            shards are removed, but never one that is being read nor a file that you put there; such files
            count, though. Allow for the shards that all workers read at a time, and for those fetched ahead.
        url_to_name: Returns a shard's name, relative to the directory, from its URL.
        verbose: Print on standard error what is fetched and removed.
        prefetch_shards: Number of shards that each process fetches ahead at a time (:meth:`prefetch`).
        validator: Returns, from the path of a fetched file, whether to keep it. By default it reads the file
            as a tar archive (:func:`mpwds.storage.tar.entries.is_whole_shard`), so that a server's error page
            or half of a shard is not kept; ``None`` for no check.
        opener: ``opener(url, offset)`` opens a URL at a byte; by default
            :func:`mpwds.storage.streams.gopen.open_at`.

    Attributes:
        directory: The directory's absolute path.
        prefetch_shards: As given.

    Raises:
        ValueError: ``prefetch_shards`` is negative.

    Source:
        ``webdataset.cache.FileCache``, for the names and the meaning of ``size_bytes``.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     cache = ShardCache(directory, validator=None)
        ...     with cache.open("pipe:echo hello") as stream:
        ...         stream.read()
        b'hello\\n'
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        size_bytes: float = -1,
        url_to_name: Callable[[str], str] = url_to_cache_name,
        verbose: bool = False,
        prefetch_shards: int = 1,
        validator: Callable[[str], bool] | None = is_whole_shard,
        opener: Callable[[str, int], BinaryIO] | None = None,
    ) -> None:
        if isinstance(size_bytes, str):
            raise TypeError(f"the size of a cache must be a number of bytes, got {size_bytes!r}")
        if prefetch_shards < 0:
            raise ValueError(f"prefetch_shards must not be negative, got {prefetch_shards}")
        self.directory = absolute_path(directory)
        self.prefetch_shards = prefetch_shards
        self._url_to_name = url_to_name
        limit = SizeLimit(self.directory, int(size_bytes), verbose)
        self._options = fetch.FetchOptions(opener or open_at, validator, limit, prefetch_shards)

    def __repr__(self) -> str:
        size = self._options.limit.size_bytes
        return f"ShardCache({self.directory!r}{f', size_bytes={size}' if size >= 0 else ''})"

    def open(self, url: str | os.PathLike[str], offset: int = 0, keep: bool = True) -> BinaryIO:
        """Opens a shard for reading. Waits while another process fetches it.

        Args:
            url: The shard; a local one is opened where it is.
            offset: Byte at which to start. A shard that is not kept yet is fetched from its beginning, and
                the first read waits for that byte.
            keep: Whether to fetch the shard into the cache if it is not there. ``False`` streams it from
                ``offset`` on, to read a few samples of it.

        Returns:
            A binary stream. That of a kept shard is a plain file, and the shard is not removed until it is
            closed. Errors of the URL's own stream come from reading, too.
        """
        url = os.fspath(url)
        if offset < 0:
            raise ValueError(f"offset in a shard must not be negative, got {offset}")
        stream = None
        if _is_kept(url):
            entry = self._entry(url)
            try:
                stream = self._open_kept(url, entry, offset, keep)
            except (OSError, RuntimeError) as error:
                what = f"the shard cache {self.directory} cannot be used, shards are streamed without it"
                fetch.warn_once(self.directory, what, error)
        return self._options.opener(url, offset) if stream is None else stream

    def open_whole(self, url: str, named: str | None = None) -> BinaryIO:
        """Opens the file of a shard that is not local, once it is complete; fetches it if need be.

        The cache may remove the shard while it is open: its bytes can be read until it is closed, and take
        room on the disk until then. It waits for another process that fetches it, as long as that lives.
        ``named`` is the shard's name in errors, by default its URL.

        Raises:
            UncacheableShard: The shard cannot be kept: the message says why.
            OSError: The URL cannot be read, or the cache directory cannot be used.
        """
        entry = self._entry(url)
        while (file := entry.open()) is None:
            reader = fetch.join(url, entry, self._options, whole=True)
            if reader is not None:
                with reader:
                    why = reader.wait()
                if why is not None:
                    raise self._not_kept(named or url, why)
            elif (refused := fetch.wait_for_other(url, entry, math.inf)) is not None:
                refused.close()
                raise self._not_kept(named or url, ShardError(fetch.REFUSED))
        unlock(file.fileno())
        return file

    def prefetch(self, url: str | os.PathLike[str]) -> bool:
        """Begins to fetch a shard in the background; at most ``prefetch_shards`` at a time.

        Returns whether this process fetches it now: not if it is kept, local, or fetched by another process.
        Errors are raised when the shard is opened.
        """
        url = os.fspath(url)
        if not _is_kept(url) or len(fetch.unread(self.directory)) >= self.prefetch_shards:
            return False
        try:
            entry = self._entry(url)
            file = entry.open()
            if file is not None:
                file.close()
                return False
            reader = fetch.join(url, entry, self._options)
        except (OSError, RuntimeError):
            return False
        if reader is not None:
            reader.close()
        return reader is not None

    def path(self, url: str | os.PathLike[str]) -> str:
        """The path of a shard's file, which may be missing; for a local shard, its own path."""
        url = os.fspath(url)
        return self._entry(url).chosen().path if _is_kept(url) else local_path(url)

    def _entry(self, url: str) -> CacheEntry:
        return CacheEntry.of(self.directory, url, self._url_to_name)

    def _not_kept(self, url: str, why: Exception) -> UncacheableShard:
        shown = without_credentials(url)
        message = f"{shown} is needed whole, and the cache {self.directory} cannot keep it: {why}"
        return UncacheableShard(message, shown)

    def _open_kept(self, url: str, entry: CacheEntry, offset: int, keep: bool) -> BinaryIO | None:
        """Opens the shard's file, or the stream of its fetch; ``None`` if it must be streamed."""
        while True:
            file = entry.open()
            if file is not None:
                file.seek(offset)
                return file
            if not keep:
                return None
            reader = fetch.join(url, entry, self._options, offset)
            if reader is not None:
                return io.BufferedReader(reader, BUFFER_BYTES)
            try:
                refused = fetch.wait_for_other(url, entry)
            except TimeoutError as error:
                fetch.warn_not_kept(entry, url, error)
                return None
            if refused is not None:
                refused.seek(offset)
                return refused


def _is_kept(url: str) -> bool:
    return url != "-" and not is_local(url)
