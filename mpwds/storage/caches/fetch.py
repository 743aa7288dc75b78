"""Fetching a shard into a cache, while readers of the same process follow it.

The process that holds the partial file's lock fetches. Others wait (:func:`wait_for_other`) until it has
renamed or removed the file, or until the kernel releases the lock because the process died.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import stat
import sys
import threading
import time
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from mpwds.storage.caches.entry import CacheEntry
from mpwds.storage.caches.eviction import SizeLimit, remove_abandoned
from mpwds.storage.caches.locks import lock, lock_shared, release, same_file
from mpwds.storage.streams.urls import without_credentials

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

patience_s = 60.0
"""How long to wait for another process whose partial file does not grow."""

_CHUNK_BYTES = 1024 * 1024
_POLL_S = 0.01
_REFUSED_MODE = 0o400  # of a partial file that is complete, but that the validator refused
_REFUSED = "it is not a whole shard, but an error page of a server, or a download that broke off"

_running: dict[str, Fetch] = {}
_warned: set[tuple[str, str]] = set()


@dataclass(frozen=True)
class FetchOptions:
    """What a ``ShardCache`` was told about fetching."""

    opener: Callable[[str, int], BinaryIO]
    validator: Callable[[str], bool] | None
    limit: SizeLimit
    prefetch_shards: int


class Fetch:
    """Fetches one shard, in a thread that ends with the process.

    If the shard cannot be kept, the first reader to get that far takes over the stream.

    Attributes:
        position: Bytes in the partial file.
        complete: Whether they are all.
        ended: Whether the thread is done.
        error: What reading the stream raised.
        readers: Number of readers.
    """

    def __init__(self, url: str, entry: CacheEntry, options: FetchOptions, claim: int) -> None:
        self.url = url
        self.entry = entry
        self.options = options
        self.position = 0
        self.complete = False
        self.ended = False
        self.error: Exception | None = None
        self.readers = 0
        self.changed = threading.Condition()
        self._claim = claim
        self._file = os.open(entry.partial, os.O_RDONLY | os.O_CLOEXEC)  # without the lock, for readers
        self._checksum = 0
        self._rest: tuple[bytes, BinaryIO] | None = None
        self._stopping = False

    def join(self, offset: int) -> FetchReader | None:
        """Adds a reader; returns ``None`` if the fetch has ended."""
        with self.changed:
            if self.ended:
                return None
            self.readers += 1
            self._stopping = False
            return FetchReader(self, os.dup(self._file), offset)

    def leave(self) -> None:
        """Removes a reader. Stops the fetch if more are unread than may be fetched ahead."""
        with self.changed:
            self.readers -= 1
            if self.readers == 0:
                self._stopping = len(unread(self.entry.directory)) > self.options.prefetch_shards
                rest = self.take_rest()
                if rest is not None:
                    _close_quietly(rest[1])

    def take_rest(self) -> tuple[bytes, BinaryIO] | None:
        """Returns, once, what cannot be kept: bytes from ``position`` on, and the stream after them."""
        with self.changed:
            rest, self._rest = self._rest, None
        return rest

    def run(self) -> None:
        """Fetches the shard."""
        try:
            if self.options.limit.verbose:
                print(f"# downloading {without_credentials(self.url)} to {self.entry.path}", file=sys.stderr)
            stream = self.options.opener(self.url, 0)
            try:
                complete = self._copy(stream)
                if complete:
                    stream.close()  # may raise that the stream broke off
            except BaseException:
                _close_quietly(stream)
                raise
            if complete:
                with self.changed:
                    self.complete = True
                    self.changed.notify_all()
                self._keep()
        except Exception as error:
            self.error = error
        finally:
            self.end()

    def end(self) -> None:
        """Removes the partial file if it is still there, and ends the lock."""
        with contextlib.suppress(OSError):
            if self.remove_partial():
                self.options.limit.give_back(self.entry.partial)
        with self.changed:
            self.ended = True
            os.close(self._file)
            release(self._claim)
            _running.pop(self.entry.partial, None)
            self.changed.notify_all()

    def remove_partial(self) -> bool:
        """Removes the partial file; returns whether it was still there."""
        found = same_file(self._claim, self.entry.partial)
        if found:
            os.unlink(self.entry.partial)
        return found

    def _copy(self, stream: BinaryIO) -> bool:
        """Copies the stream into the partial file; returns whether all of it is there."""
        read = getattr(stream, "read1", stream.read)
        size = getattr(stream, "size", None) or getattr(getattr(stream, "raw", None), "size", None)
        granted = 0
        while chunk := read(_CHUNK_BYTES):
            with self.changed:
                self.ended = self._stopping
            if self.ended:
                stream.close()
                return False
            needed = self.position + len(chunk)
            written = 0
            try:
                if needed > granted:
                    granted = self.options.limit.reserve(self.entry.partial, needed, size)
                    if not granted:
                        self._warn_not_kept(
                            "the cache has no room for it beside shards in use and foreign files"
                        )
                while granted and written < len(chunk):
                    written += os.write(self._claim, chunk[written:])
            except OSError as error:
                self._warn_not_kept(f"{type(error).__name__}: {error}")
            self._checksum = zlib.crc32(chunk[:written], self._checksum)
            with self.changed:
                self.position += written
                self.changed.notify_all()
                if written < len(chunk):
                    if self.readers:
                        self._rest = chunk[written:], stream
                    else:
                        _close_quietly(stream)
                    return False
        return True

    def _keep(self) -> None:
        """Gives the shard its name if the validator accepts it."""
        validator = self.options.validator
        try:
            if validator is not None and not validator(self.entry.partial):
                self._warn_not_kept(_REFUSED)
                os.fchmod(self._claim, _REFUSED_MODE)
            else:
                os.fsync(self._claim)
                self.entry.publish(self._checksum)
        except Exception as error:  # the readers have all bytes
            self._warn_not_kept(f"{type(error).__name__}: {error}")

    def _warn_not_kept(self, why: str) -> None:
        if self.readers:
            warn_not_kept(self.entry, self.url, why)


class FetchReader(io.RawIOBase):
    """A shard's bytes while this process fetches it. It has no ``fileno``, as the file is not complete."""

    def __init__(self, fetch: Fetch, descriptor: int, offset: int) -> None:
        self.name = without_credentials(fetch.url)
        self._fetch = fetch
        self._pid = os.getpid()
        self._descriptor = descriptor
        self._position = offset
        self._pending = b""  # comes before the stream
        self._stream: BinaryIO | None = None  # takes over where the fetch cannot go on

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        fetch = self._fetch
        if self._stream is None and self._pid == os.getpid():
            with fetch.changed:
                fetch.changed.wait_for(
                    lambda: fetch.position > self._position or fetch.complete or fetch.ended
                )
            if fetch.position > self._position:
                count = os.preadv(self._descriptor, [view], self._position)
                self._position += count
                return count
            if fetch.complete:
                return 0
            if fetch.error is not None:
                raise fetch.error
            self._take_over()
        if self._stream is None:  # in a fork, or if another reader took over
            self._stream = fetch.options.opener(fetch.url, self._position)
        data = self._read_stream(self._stream, len(view))
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        os.close(self._descriptor)
        if self._stream is not None:
            self._stream.close()
        if self._pid == os.getpid():
            self._fetch.leave()

    def _take_over(self) -> None:
        rest = self._fetch.take_rest()
        if rest is not None:
            self._pending, self._stream = rest
            skip = self._position - self._fetch.position
            while skip > 0 and (skipped := self._read_stream(self._stream, min(skip, _CHUNK_BYTES))):
                skip -= len(skipped)

    def _read_stream(self, stream: BinaryIO, count: int) -> bytes:
        if self._pending:
            data, self._pending = self._pending[:count], self._pending[count:]
            return data
        read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
        return read(count)


def join(url: str, entry: CacheEntry, options: FetchOptions, offset: int = 0) -> FetchReader | None:
    """Returns a reader of this process's fetch of a shard, which it begins if no process fetches the shard.

    Returns:
        The reader, at byte ``offset``; ``None`` if another process fetches the shard, or it is complete now.

    Raises:
        OSError: The cache directory cannot be used.
        RuntimeError: No thread can be started.
    """
    fetch = _running.get(entry.partial)
    if fetch is not None:
        return fetch.join(offset)
    os.makedirs(os.path.dirname(entry.partial), exist_ok=True)
    remove_abandoned(entry.directory)
    claim = lock(entry.partial, create=True)
    if claim is None:
        return None
    try:
        complete = entry.open()
        if complete is not None:
            os.close(complete)
            os.unlink(entry.partial)
            release(claim)
            return None
        fetch = Fetch(url, entry, options, claim)
    except BaseException:
        release(claim)
        raise
    _running[entry.partial] = fetch
    reader = fetch.join(offset)
    try:
        threading.Thread(target=fetch.run, name=f"fetching {entry.name}", daemon=True).start()
    except BaseException:
        fetch.end()
        raise
    return reader


def unread(directory: str) -> list[Fetch]:
    """This process's fetches into a cache directory that have no reader yet, or not any more."""
    fetches = list(_running.values())
    return [
        each for each in fetches if each.entry.directory == directory and not each.readers + each.complete
    ]


def wait_for_other(url: str, entry: CacheEntry) -> BinaryIO | None:
    """Waits until another process has fetched a shard, or does not fetch it any more.

    Returns:
        The shard's bytes if the validator refused them; ``None`` otherwise: look again.

    Raises:
        TimeoutError: The partial file has not grown for ``patience_s`` seconds.
        OSError: The cache directory cannot be used.
    """
    try:
        descriptor = os.open(entry.partial, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    refused = False
    try:
        size, since = -1, time.monotonic()
        while same_file(descriptor, entry.partial):
            own = _running.get(entry.partial)
            if own is not None and not own.ended:
                return None
            if lock_shared(descriptor) and same_file(descriptor, entry.partial):
                return None
            now, now_size = time.monotonic(), os.fstat(descriptor).st_size
            if now_size != size:
                size, since = now_size, now
            elif now - since > patience_s:
                raise TimeoutError(f"the process that fetches it has written nothing for {patience_s:.0f} s")
            time.sleep(_POLL_S)
        refused = stat.S_IMODE(os.fstat(descriptor).st_mode) == _REFUSED_MODE
    finally:
        if not refused:
            os.close(descriptor)
    if refused:
        warn_not_kept(entry, url, _REFUSED)
    return os.fdopen(descriptor, "rb") if refused else None


def warn_not_kept(entry: CacheEntry, url: str, why: str) -> None:
    """Warns that a shard is streamed and not kept, once for each directory and reason."""
    if (entry.directory, why) not in _warned:
        _warned.add((entry.directory, why))
        warnings.warn(
            f"{without_credentials(url)} is streamed, but not kept in the cache {entry.directory}: {why} "
            "(this is said once)",
            RuntimeWarning,
            stacklevel=3,
        )


def _close_quietly(stream: BinaryIO) -> None:
    with contextlib.suppress(Exception):
        stream.close()


def _finish() -> None:
    """Keeps shards that are complete when the process ends, and removes the other partial files."""
    for fetch in list(_running.values()):
        with fetch.changed:
            if fetch.complete and not fetch.ended:
                fetch.changed.wait(patience_s)
        with contextlib.suppress(OSError):
            fetch.remove_partial()


os.register_at_fork(after_in_child=_running.clear)
atexit.register(_finish)
