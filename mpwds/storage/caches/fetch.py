"""Fetching a shard into a cache directory, while readers of the same process follow it.

The files of a shard::

    000.tar                               a complete shard: the raw bytes that were fetched
    .mpwds/000.tar.mark                   source and size of a shard that the cache fetched; touched at each
                                          use. A shard without a mark was put there by hand
    .mpwds/partial/000.tar.0f1e...partial a shard that is being fetched
    .mpwds/lock                           locked while files get names and are removed; notes the bytes in all

The process that holds the partial file's lock fetches. When the shard is on disk, its mark gets its name,
then the shard; eviction removes them in the opposite order. Other processes wait (:func:`wait_for_other`)
until the partial file was renamed or removed, or until the kernel releases the lock because the process died:
then one of them takes over.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import stat
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from mpwds.storage.caches.eviction import SizeLimit, locked_usage, remove_abandoned
from mpwds.storage.caches.locks import lock, lock_shared, release, same_file
from mpwds.storage.caches.names import (
    PARTIALS,
    PRIVATE,
    cache_name,
    distinct_name,
    mark_path,
    source_digest,
    url_to_cache_name,
)
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
class CacheEntry:
    """The files of one URL in a cache directory; ``source`` is the URL's ``source_digest``."""

    directory: str
    name: str
    source: str

    @staticmethod
    def of(directory: str, url: str, url_to_name: Callable[[str], str] = url_to_cache_name) -> CacheEntry:
        """The entry of a URL. Raises as ``cache_name``."""
        return CacheEntry(directory, cache_name(url, url_to_name), source_digest(url))

    @property
    def path(self) -> str:
        return os.path.join(self.directory, self.name)

    @property
    def mark(self) -> str:
        return mark_path(self.directory, self.name)

    @property
    def partial(self) -> str:
        name = f"{os.path.basename(self.name)}.{self.source}.partial"
        return os.path.join(self.directory, PRIVATE, PARTIALS, name)

    def chosen(self) -> CacheEntry:
        """This entry, or one of another name if another URL's shard has the name."""
        mark = _read_mark(self.mark)
        if mark is None or mark[0] == self.source or not os.path.exists(self.path):
            return self
        return CacheEntry(self.directory, distinct_name(self.name, self.source), self.source)

    def open(self) -> int | None:
        """Opens the complete shard, locked against removal; ``None`` if it is not there.

        Removes a shard whose size has changed since it was fetched, with a warning.
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
                    if mark is not None and mark[0] != self.source:
                        return None
                    size = os.fstat(descriptor).st_size
                    if mark is None or mark[1] == size:
                        usable = True
                        with contextlib.suppress(OSError):  # no mark, or another user's
                            os.utime(entry.mark)
                        return descriptor
                    entry._remove_damaged(descriptor, size, mark[1])
            finally:
                if not usable:
                    os.close(descriptor)

    def publish(self) -> None:
        """Gives the complete partial file its name, unless a file put there by hand has it."""
        size = os.stat(self.partial).st_size
        new_mark = self.partial + ".mark"
        with open(new_mark, "w", encoding="ascii") as file:
            json.dump({"source": self.source, "size": size}, file)
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
            usage.total += size

    def _remove_damaged(self, descriptor: int, size: int, noted: int) -> None:
        with locked_usage(self.directory) as usage:
            if not same_file(descriptor, self.path):
                return
            usage.total -= size
            os.unlink(self.path)
            os.unlink(self.mark)
        warnings.warn(
            f"{self.path} has {size} bytes and had {noted} when it was fetched: it is fetched again",
            RuntimeWarning,
            stacklevel=2,
        )


def _read_mark(path: str) -> tuple[str, int] | None:
    """Source and size of a shard."""
    try:
        with open(path, encoding="ascii") as file:
            noted = json.load(file)
        return str(noted["source"]), int(noted["size"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True)
class FetchOptions:
    """The options of a ``ShardCache`` that concern fetching."""

    opener: Callable[[str, int], BinaryIO]
    validator: Callable[[str], bool] | None
    limit: SizeLimit
    prefetch_shards: int


class Fetch:
    """Fetches one shard, in a thread that ends with the process.

    If the shard cannot be kept, each reader that gets that far opens the URL there.

    Attributes:
        position: Bytes in the partial file.
        complete: Whether these are all.
        ended: Whether the thread is done.
        error: The exception that reading the stream raised.
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
        """Removes a reader. Stops the fetch if more fetches have no reader than may be fetched ahead."""
        with self.changed:
            self.readers -= 1
            if self.readers == 0:
                self._stopping = len(unread(self.entry.directory)) > self.options.prefetch_shards

    def run(self) -> None:
        try:
            if self.options.limit.verbose:
                print(f"# downloading {without_credentials(self.url)} to {self.entry.path}", file=sys.stderr)
            stream = self.options.opener(self.url, 0)
            complete = False
            try:
                complete = self._copy(stream)
            finally:
                if not complete:
                    with contextlib.suppress(Exception):
                        stream.close()
            if complete:
                stream.close()  # may raise that the stream broke off
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
                return False
            needed = self.position + len(chunk)
            try:
                if needed > granted:
                    granted = self.options.limit.reserve(self.entry.partial, needed, size)
                    if not granted:
                        self._warn_not_kept(
                            "the cache has no room for it beside shards in use and foreign files"
                        )
                        return False
                written = 0
                while written < len(chunk):
                    written += os.write(self._claim, chunk[written:])
            except OSError as error:
                self._warn_not_kept(f"{type(error).__name__}: {error}")
                return False
            with self.changed:
                self.position = needed
                self.changed.notify_all()
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
                self.entry.publish()
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
        self._stream: BinaryIO | None = None  # replaces a fetch that does not continue

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
        if self._stream is None:  # in a fork, or because the shard cannot be kept
            self._stream = fetch.options.opener(fetch.url, self._position)
        read: Callable[[int], bytes] = getattr(self._stream, "read1", self._stream.read)
        data = read(len(view))
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


def join(url: str, entry: CacheEntry, options: FetchOptions, offset: int = 0) -> FetchReader | None:
    """Returns a reader of this process's fetch of a shard. Begins the fetch if no process fetches the shard.

    Returns ``None`` if another process fetches the shard, or it is complete now. Raises ``OSError`` if the
    cache directory cannot be used, ``RuntimeError`` if no thread can be started.
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
    """This process's unfinished fetches into a cache directory that have no reader."""
    fetches = list(_running.values())
    return [
        each for each in fetches if each.entry.directory == directory and not each.readers + each.complete
    ]


def wait_for_other(url: str, entry: CacheEntry) -> BinaryIO | None:
    """Waits until another process has fetched a shard, or no longer fetches it; then the caller looks again.

    Returns the shard's bytes if the validator refused them. Raises ``TimeoutError`` if the partial file has
    not grown for ``patience_s`` seconds, ``OSError`` if the cache directory cannot be used.
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
