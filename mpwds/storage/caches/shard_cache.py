"""Shards on a local disk: each is fetched once per node, and read while it is fetched."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Callable
from typing import BinaryIO

from mpwds.storage.caches.files import CacheFiles, read_mark
from mpwds.storage.caches.fill import Fill, Opener, Validator, begin, fills
from mpwds.storage.caches.locks import same_file, try_shared
from mpwds.storage.caches.names import url_to_cache_name
from mpwds.storage.caches.reader import CacheReader, Found
from mpwds.storage.caches.room import CacheRoom
from mpwds.storage.caches.tar_check import is_whole_shard
from mpwds.storage.streams.urls import is_local, local_path

_BUFFER_BYTES = 256 * 1024

_warned: set[str] = set()


class ShardCache:
    """A directory that keeps shards, for all processes of a machine.

    ``open`` gives a shard's bytes: from its file where it is kept, else while it is fetched, by a thread of
    the process that asked first. All others that ask meanwhile, in whatever process, read the growing file,
    so it is fetched once; if the one who fetches it dies, another takes over, and no reader loses a byte or
    gets one twice. A shard appears under its name when it is complete and on disk, so that name never shows
    a part of one.

    Local files are opened as they are. A shard that you put into the directory under its name is used as it
    is. The raw bytes are kept: what is compressed stays so.

    Two URLs that have the same name (``train/000.tar`` and ``val/000.tar`` do, by default) get different
    files: the second one's name is lengthened. Only files put there by hand are taken at their name.

    What cannot be kept is streamed, with one warning: a shard larger than the cache, a full disk, a
    directory that cannot be written, bytes that the validator does not like. Nothing of it is lost, and what
    was fetched before the disk was full is not fetched again.

    Objects can be pickled, and used in forks. A reader that is closed early leaves the fetching to go on in
    the background while no more than ``prefetch_shards`` do so; it ends with the process.

    Args:
        directory: Where to keep them; made when it is needed. The disk should be local: it needs file locks.
        size_bytes: Bytes that its files may have in all; negative for no limit. Shards not used for longest
            are removed, but never one that is being read, or a file that you put there; such files count,
            though. Allow for what all workers read at a time, and the shards fetched ahead.
        url_to_name: Makes a shard's name, relative to the directory, from its URL.
        verbose: Tell on standard error what is fetched and removed.
        prefetch_shards: Shards that are fetched ahead at a time, by each process (:meth:`prefetch`).
        validator: Says of the path of a file that was fetched whether it is worth keeping, so that a
            server's error page, or half of a shard, is not kept for ever. By default it reads it as a tar
            archive (:func:`mpwds.storage.caches.tar_check.is_whole_shard`); ``None`` for no check.
        opener: ``opener(url, offset)`` gives a URL's bytes; ``open_at`` of
            ``mpwds.storage.streams.gopen`` by default.

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
        validator: Validator | None = is_whole_shard,
        opener: Opener | None = None,
    ) -> None:
        if prefetch_shards < 0:
            raise ValueError(f"prefetch_shards must not be negative, got {prefetch_shards}")
        self.directory = os.path.abspath(os.path.expanduser(os.fspath(directory)))
        self.prefetch_shards = prefetch_shards
        self._size = int(size_bytes)
        self._url_to_name = url_to_name
        self._verbose = verbose
        self._validator = validator
        self._opener = opener
        self._room = CacheRoom(self.directory, self._size, verbose)

    def __repr__(self) -> str:
        limit = f", size_bytes={self._size}" if self._size >= 0 else ""
        return f"ShardCache({self.directory!r}{limit})"

    def open(self, url: str | os.PathLike[str], offset: int = 0, keep: bool = True) -> BinaryIO:
        """Opens a shard for reading from a byte on.

        Args:
            url: The shard. What is local is opened as it is.
            offset: Byte at which to start. A shard that is not there yet is fetched from its beginning,
                and the first read waits until that byte is there.
            keep: Fetch the shard into the cache if it is not there. ``False`` streams it from ``offset``
                on, and is for reading a sample or two of it.

        Returns:
            A binary stream. Of a complete shard it is a plain file, which holds a lock that keeps the shard
            from being removed until it is closed.

        Raises:
            ValueError: ``url_to_name`` gives no usable name, or ``offset`` is negative.
            StreamError: While reading, what the URL's own stream raises; or the shard changed while it was
                read, and a process that fetched it died.
        """
        url = os.fspath(url)
        if offset < 0:
            raise ValueError(f"offset in a shard must not be negative, got {offset}")
        if not self._is_kept_here(url):
            return self._open_at(url, offset)
        files = self._files(url)
        try:
            found = self._find(url, files, keep)
        except (OSError, RuntimeError) as error:
            self._warn(error)
            found = Found(None)
        if found.is_complete and found.descriptor is not None:
            file = os.fdopen(found.descriptor, "rb", buffering=_BUFFER_BYTES)
            file.seek(offset)
            return file
        if found.descriptor is None:
            return self._open_at(url, offset)
        raw = CacheReader(
            url, offset, found, lambda: self._find(url, files, True), self._open_at, self._stop_unread
        )
        return io.BufferedReader(raw, _BUFFER_BYTES)

    def prefetch(self, url: str | os.PathLike[str]) -> bool:
        """Begins to fetch a shard that will be wanted soon, in the background; at most ``prefetch_shards``
        at a time.

        What goes wrong is told when the shard is opened.

        Args:
            url: The shard.

        Returns:
            Whether it is fetched by this process now: not if it is there, local, or being fetched already.
        """
        url = os.fspath(url)
        if not self._is_kept_here(url) or len(self._unread()) >= self.prefetch_shards:
            return False
        try:
            found = self._find(url, self._files(url), True)
        except (OSError, RuntimeError):
            return False
        if found.descriptor is not None:
            os.close(found.descriptor)
        if found.fill is None:
            return False
        found.fill.leave()
        return True

    def path(self, url: str | os.PathLike[str]) -> str:
        """Where a shard is kept, or would be: the file may be missing. Of a local one, its path.

        Args:
            url: The shard.

        Example:
            >>> ShardCache("/cache").path("https://host/train/000.tar")
            '/cache/000.tar'
        """
        url = os.fspath(url)
        return self._choose(self._files(url)).path if self._is_kept_here(url) else local_path(url)

    def _is_kept_here(self, url: str) -> bool:
        return url != "-" and not is_local(url)

    def _files(self, url: str) -> CacheFiles:
        return CacheFiles.of(self.directory, url, self._url_to_name)

    def _choose(self, files: CacheFiles) -> CacheFiles:
        """The files by their own name, or by another one where another URL's shard has that."""
        mark = read_mark(files.mark)
        taken = mark is not None and mark.source != files.source and os.path.exists(files.path)
        return files.other() if taken else files

    def _find(self, url: str, files: CacheFiles, keep: bool) -> Found:
        """Where the shard can be read; begins to fetch it if it is to be kept."""
        while True:
            descriptor = self._open_complete(files)
            if descriptor is not None:
                return Found(descriptor, is_complete=True)
            if not keep:
                return Found(None)
            fill, descriptor = begin(
                url,
                files,
                self._room,
                self._open_at,
                lambda: self._is_complete(files),
                self._validator,
                self._verbose,
            )
            if descriptor is not None:
                return Found(descriptor, fill, paths=(files.path, files.other().path))

    def _is_complete(self, files: CacheFiles) -> bool:
        descriptor = self._open_complete(files)
        if descriptor is not None:
            os.close(descriptor)
        return descriptor is not None

    def _open_complete(self, files: CacheFiles) -> int | None:
        """A descriptor of the complete shard, locked against removal; ``None`` if it is not there."""
        while True:
            chosen = self._choose(files)
            try:
                descriptor = os.open(chosen.path, os.O_RDONLY | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                return None
            try:
                try_shared(
                    descriptor
                )  # whoever locks it exclusively, only for a moment, does not touch its bytes
                if same_file(descriptor, chosen.path):
                    if self._is_sound(descriptor, chosen):
                        return descriptor
                    os.close(descriptor)
                    return None
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _is_sound(self, descriptor: int, files: CacheFiles) -> bool:
        """Whether a file is what the cache noted about it; notes that it is used."""
        mark = read_mark(files.mark)
        if mark is None:
            return True
        if mark.source != files.source:
            return False
        fault = mark.fault(descriptor)
        if fault is not None:
            warnings.warn(f"{files.path} {fault}: it is fetched again", RuntimeWarning, stacklevel=2)
            return False
        with contextlib.suppress(OSError):  # of another user: it will be thought older than it is
            os.utime(files.mark)
        return True

    def _open_at(self, url: str, offset: int) -> BinaryIO:
        if self._opener is not None:
            return self._opener(url, offset)
        from mpwds.storage.streams.gopen import open_at

        return open_at(url, offset)

    def _unread(self) -> list[Fill]:
        return [fill for fill in fills(self.directory) if fill.readers == 0 and not fill.is_whole]

    def _stop_unread(self) -> None:
        """Stops the oldest of the fills that nobody reads, as far as they are too many."""
        unread = self._unread()
        for fill in unread[: max(0, len(unread) - self.prefetch_shards)]:
            fill.stop()

    def _warn(self, error: Exception) -> None:
        if self.directory in _warned:
            return
        _warned.add(self.directory)
        warnings.warn(
            f"the shard cache {self.directory} cannot be used, shards are streamed without it: "
            f"{type(error).__name__}: {error} (this is said once)",
            RuntimeWarning,
            stacklevel=3,
        )
