"""Fetching shards into a cache directory, while readers of the same process follow.

*Idea.* The process that holds the lock of a shard's partial file fetches the shard, in a thread. Readers of
that process follow the growing file. Other processes wait (:func:`wait_for_other`) until the partial file was
renamed or removed, or until the kernel releases the lock because the process died: then one of them takes
over.

*Invariants.*

- A file under a shard's name is complete, on disk, and accepted by the validator.
- A reader gets all bytes of its URL, whether the shard can be kept or not: if a fetch stops, its readers open
  the URL where they are.
- A fetch that fails is an error for its readers only. A shard that cannot be kept (there is no room, or the
  validator refuses it) is streamed, with one warning.
- Of a process that was killed, a partial file without a lock remains. The next fetch removes it.

*Rejected.* Readers of other processes could follow the growing file, too: they would have to be told how far
it is, and by whom if the process that fetches dies. Fetching in a process of its own would need one to start
and end it. Locks with owners and times in them go wrong when clocks or hosts differ; the kernel's do not.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import os
import stat
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

from mpwds.errors import ShardError
from mpwds.storage.caches.directory import BUFFER_BYTES, CacheEntry, SizeLimit, remove_abandoned
from mpwds.storage.caches.locks import lock, lock_open, release, same_file
from mpwds.storage.streams.base import (
    InputStream,
    PerhapsCut,
    detects_truncation,
    piece_reader,
    stream_version,
)
from mpwds.storage.streams.urls import without_credentials
from mpwds.storage.tar.entries import is_whole_shard
from mpwds.warn import warn

patience_s = 60.0
"""How long to wait for another process whose partial file does not grow."""

_CHUNK_BYTES = 1024 * 1024
_POLL_S = 0.01
_REFUSED_MODE = 0o400  # of a partial file that is complete, but that the validator refused
REFUSED = "it is not a whole shard, but an error page of a server, or a download that broke off"

_running: dict[str, Fetch] = {}
_warned: set[tuple[str, type[Exception]]] = set()


@dataclass(frozen=True)
class FetchOptions:
    """The options of a ``ShardCache`` that concern fetching."""

    opener: Callable[[str, int], BinaryIO]
    validator: Callable[[str], bool] | None
    limit: SizeLimit
    prefetch_shards: int


class Fetch:
    """Fetches one shard, in a thread that ends with the process."""

    def __init__(self, url: str, entry: CacheEntry, options: FetchOptions, claim: int) -> None:
        self.url = url
        self.entry = entry
        self.options = options
        self.position = 0  # bytes in the partial file
        self.complete = False  # these are all
        self.detects_truncation = True  # the URL's stream would have raised if it had ended too early
        self.ended = False  # the thread is done
        self.error: Exception | None = None  # that reading the stream raised
        self.not_kept: Exception | None = None  # why the shard is not kept
        self.readers = 0
        self.waiting = 0  # readers that wait for the whole shard, and are told why it is not kept
        self.changed = threading.Condition()
        self._claim = claim
        self._file = os.open(entry.partial, os.O_RDONLY | os.O_CLOEXEC)  # without the lock, for readers
        self._stopping = False

    def join(self, offset: int, whole: bool) -> FetchReader | None:
        """Adds a reader, which waits for the ``whole`` shard or not; ``None`` if the fetch has ended."""
        with self.changed:
            if self.ended:
                return None
            reader = FetchReader(self, os.dup(self._file), offset, whole)
            self.readers += 1
            self.waiting += whole
            self._stopping = False
            return reader

    def leave(self, whole: bool) -> None:
        """Removes a reader, which waited for the ``whole`` shard or not.

        Stops the fetch if more fetches have no reader than may be fetched ahead.
        """
        with self.changed:
            self.readers -= 1
            self.waiting -= whole
            if self.readers == 0:
                self._stopping = len(unread(self.entry.directory)) > self.options.prefetch_shards

    def run(self) -> None:
        try:
            if self.options.limit.verbose:
                print(f"# downloading {without_credentials(self.url)} to {self.entry.path}", file=sys.stderr)
            with contextlib.closing(self.options.opener(self.url, 0)) as stream:
                complete = self._copy(stream)
                self.detects_truncation = detects_truncation(stream)
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
        self.remove_partial()
        with self.changed:
            self.ended = True
            os.close(self._file)
            release(self._claim)
            _running.pop(self.entry.partial, None)
            self.changed.notify_all()

    def remove_partial(self) -> None:
        with contextlib.suppress(OSError):
            if same_file(self._claim, self.entry.partial):
                os.unlink(self.entry.partial)

    def _copy(self, stream: BinaryIO) -> bool:
        """Copies the stream into the partial file; returns whether all of it is there."""
        read = piece_reader(stream)
        size = stream_version(stream).size
        granted = 0
        while chunk := read(_CHUNK_BYTES):
            with self.changed:
                self.ended = self._stopping
            if self.ended:
                return False
            needed = self.position + len(chunk)
            try:
                if needed > granted:
                    granted = self._reserve(needed, size)
                written = 0
                while written < len(chunk):
                    written += os.write(self._claim, chunk[written:])
            except OSError as error:
                self._warn_not_kept(error)
                return False
            with self.changed:
                self.position = needed
                self.changed.notify_all()
        return True

    def _reserve(self, needed: int, size: int | None) -> int:
        """Makes room for the shard, as ``SizeLimit.reserve`` does. Waits for it while others fetch theirs.

        Raises ``OSError`` if there is no room, or somebody reads the shard who need not have it whole.
        """
        limit, partial = self.options.limit, self.entry.partial
        deadline = time.monotonic() + patience_s
        while not (granted := limit.reserve(partial, needed, size)):
            can_wait = 0 < self.waiting == self.readers and time.monotonic() < deadline
            if not can_wait or not limit.reserved_beside(partial):
                whole, most = max(needed, size or 0), limit.size_bytes
                why = "beside shards in use and foreign files"
                if whole > most:
                    why = f"in the {most:,} bytes that it may have: {whole:,} are needed"
                raise OSError(f"the cache has no room for it {why}")
            time.sleep(_POLL_S)
        return granted

    def _keep(self) -> None:
        """Gives the shard its name if the validator accepts it."""
        validator = self.options.validator
        if validator is is_whole_shard:
            validator = functools.partial(is_whole_shard, detects_truncation=self.detects_truncation)
        try:
            os.ftruncate(self._claim, self.position)
            if validator is not None and not validator(self.entry.partial):
                os.fchmod(self._claim, _REFUSED_MODE)
                raise ShardError(REFUSED)
            os.fsync(self._claim)
            self.entry.publish()
        except Exception as error:  # the readers have all bytes
            self._warn_not_kept(error)

    def _warn_not_kept(self, why: Exception) -> None:
        self.not_kept = why
        if self.readers > self.waiting:
            warn_not_kept(self.entry, self.url, why)


class FetchReader(InputStream):
    """A shard's bytes while this process fetches it. It has no ``fileno``, as the file is not complete."""

    def __init__(self, fetch: Fetch, descriptor: int, offset: int, whole: bool) -> None:
        self.name = without_credentials(fetch.url)
        self._fetch = fetch
        self._pid = os.getpid()
        self._descriptor = descriptor
        self._whole = whole
        self._position = offset
        self._stream: BinaryIO | None = None  # replaces a fetch that does not continue

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        fetch = self._fetch
        if self._stream is None and self._pid == os.getpid():
            with fetch.changed:
                fetch.changed.wait_for(
                    lambda: fetch.position > self._position or fetch.complete or fetch.ended
                )
            if (there := fetch.position - self._position) > 0:
                # The file is longer than what has been fetched: its size reserves space.
                count = os.preadv(self._descriptor, [view[:there]], self._position)
                self._position += count
                return count
            if fetch.complete:
                self.detects_truncation = fetch.detects_truncation
                return 0
            if fetch.error is not None:
                raise fetch.error
        if self._stream is None:  # in a fork, or because the shard cannot be kept
            self._stream = fetch.options.opener(fetch.url, self._position)
            self._read = piece_reader(self._stream)
        data = self._read(len(view))
        if not data:
            self.detects_truncation = detects_truncation(self._stream)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def wait(self) -> Exception | None:
        """Waits until the fetch has ended, and raises its error. Returns why the shard is not kept."""
        fetch = self._fetch
        with fetch.changed:
            fetch.changed.wait_for(lambda: fetch.ended)
        if fetch.error is not None:
            raise fetch.error
        return fetch.not_kept

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        os.close(self._descriptor)
        if self._stream is not None:
            self._stream.close()
        if self._pid == os.getpid():
            self._fetch.leave(self._whole)


def join(
    url: str, entry: CacheEntry, options: FetchOptions, offset: int = 0, whole: bool = False
) -> FetchReader | None:
    """Returns a reader of this process's fetch of a shard. Begins the fetch if no process fetches the shard.

    Returns ``None`` if another process fetches the shard, or it is complete now. Raises ``OSError`` if the
    cache directory cannot be used, ``RuntimeError`` if no thread can be started.
    """
    fetch = _running.get(entry.partial)
    if fetch is not None:
        return fetch.join(offset, whole)
    os.makedirs(os.path.dirname(entry.partial), exist_ok=True)
    remove_abandoned(entry.directory)
    claim = lock(entry.partial, create=True)
    if claim is None:
        return None
    with contextlib.ExitStack() as unless_it_runs:
        unless_it_runs.callback(release, claim)
        complete = entry.open()
        if complete is not None:
            complete.close()
            os.unlink(entry.partial)
            return None
        fetch = Fetch(url, entry, options, claim)
        unless_it_runs.pop_all()
        unless_it_runs.callback(fetch.end)  # which releases the claim, too
        _running[entry.partial] = fetch
        reader = fetch.join(offset, whole)
        threading.Thread(target=fetch.run, name=f"fetching {entry.name}", daemon=True).start()
        unless_it_runs.pop_all()
    return reader


def unread(directory: str) -> list[Fetch]:
    """This process's unfinished fetches into a cache directory that have no reader."""
    fetches = [fetch for fetch in list(_running.values()) if fetch.entry.directory == directory]
    return [fetch for fetch in fetches if not fetch.readers and not fetch.complete]


def wait_for_other(url: str, entry: CacheEntry, most_s: float | None = None) -> BinaryIO | None:
    """Waits until another process has fetched a shard, or no longer fetches it; then the caller looks again.

    Returns the shard's bytes if the validator refused them, so that they are fetched only once. Raises
    ``TimeoutError`` if the partial file has not grown for ``most_s`` seconds, by default ``patience_s``;
    ``OSError`` if the cache directory cannot be used.
    """
    most_s = patience_s if most_s is None else most_s
    try:
        file = io.BufferedReader(PerhapsCut(entry.partial), BUFFER_BYTES)
    except FileNotFoundError:
        return None
    with contextlib.ExitStack() as stack:
        stack.enter_context(file)
        written_ns, since = 0, time.monotonic()
        while same_file(file.fileno(), entry.partial) and not lock_open(file.fileno(), shared=True):
            last_ns = os.fstat(file.fileno()).st_mtime_ns
            if last_ns != written_ns:
                written_ns, since = last_ns, time.monotonic()
            elif time.monotonic() - since > most_s:
                raise TimeoutError(f"the process that fetches it has written nothing for {most_s:.0f} s")
            time.sleep(_POLL_S)
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) != _REFUSED_MODE:
            return None
        stack.pop_all()  # the caller closes it
    warn_not_kept(entry, url, ShardError(REFUSED))
    return file


def warn_not_kept(entry: CacheEntry, url: str, why: Exception) -> None:
    shown = without_credentials(url)
    warn_once(entry.directory, f"{shown} is streamed, but not kept in the cache {entry.directory}", why)


def warn_once(directory: str, what: str, why: Exception) -> None:
    """Warns once for each directory and kind of error."""
    if (directory, type(why)) not in _warned:
        _warned.add((directory, type(why)))
        warn(f"{what}: {type(why).__name__}: {why} (this is said once)")


def _finish() -> None:
    """Keeps shards that are complete when the process ends, and removes the other partial files."""
    for fetch in list(_running.values()):
        with fetch.changed:
            if fetch.complete and not fetch.ended:
                fetch.changed.wait(patience_s)
        fetch.remove_partial()


os.register_at_fork(after_in_child=_running.clear)
atexit.register(_finish)
