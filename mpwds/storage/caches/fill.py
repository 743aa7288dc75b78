"""A shard on its way into a cache: a thread that fetches it, while any number of readers follow."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import warnings
import zlib
from collections.abc import Callable
from typing import BinaryIO

from mpwds.storage.caches.files import CacheFiles
from mpwds.storage.caches.locks import close, keep_from_forks, same_file, try_exclusive
from mpwds.storage.caches.room import CacheRoom
from mpwds.storage.streams.urls import without_credentials

_CHUNK_BYTES = 1024 * 1024
_STEPS_BYTES = (64 << 20, 8 << 20, 0)  # reserved at a time, where the size is not known before

Opener = Callable[[str, int], BinaryIO]
Validator = Callable[[str], bool]

_fills: dict[str, Fill] = {}
_registry = threading.Lock()
_warned: set[tuple[str, str]] = set()


class Fill:
    """Fetches one shard, in a thread of its own that ends with the process.

    Whoever asks for the same shard in this process gets the same one (:func:`begin`); other processes find
    the partial file locked, and follow it. What was fetched and could not be kept is not lost: the first
    reader that gets there takes over the stream (``take_rest``).

    Attributes:
        position: Bytes in the partial file.
        ended: Nothing more comes into it.
        is_whole: It holds the whole shard.
        error: What reading the shard raised; for its readers.
        readers: How many in this process follow it.
    """

    def __init__(self, url: str, files: CacheFiles, descriptor: int) -> None:
        self.url = url
        self.files = files
        self.position = 0
        self.ended = False
        self.is_whole = False
        self.error: Exception | None = None
        self.readers = 0
        self._descriptor = descriptor
        self._checksum = 0
        self._rest: tuple[bytes, BinaryIO] | None = None
        self._stopping = False
        self._changed = threading.Condition()
        self._pid = os.getpid()

    @property
    def is_own(self) -> bool:
        """Whether this process runs it, not one that this process is a fork of."""
        return self._pid == os.getpid()

    def wait_beyond(self, position: int) -> None:
        """Returns when there are bytes behind ``position``, or nothing more comes."""
        with self._changed:
            self._changed.wait_for(lambda: self.position > position or self.ended)

    def take_rest(self) -> tuple[bytes, BinaryIO] | None:
        """What comes behind ``position`` and cannot be kept: bytes, and the stream behind them. Once."""
        with self._changed:
            rest, self._rest = self._rest, None
        return rest

    def join(self) -> None:
        """Counts one reader more."""
        with self._changed:
            self.readers += 1

    def leave(self) -> None:
        """Ends the following by one reader."""
        with self._changed:
            self.readers -= 1
            left = self.readers == 0 and self._rest is not None
        if left:
            self._close_rest()

    def stop(self) -> None:
        """Stops it, unless everything has been fetched already. The partial file is thrown away."""
        self._stopping = True

    def run(self, room: CacheRoom, opener: Opener, validator: Validator | None, verbose: bool) -> None:
        """Fetches the shard; what is raised is for the readers. Called by :func:`begin`, in a thread."""
        try:
            if verbose:
                print(f"# downloading {without_credentials(self.url)} to {self.files.path}", file=sys.stderr)
            stream = opener(self.url, 0)
            try:
                keeping = self._fetch(stream, room)
            except BaseException:
                stream.close()
                raise
            if keeping:
                stream.close()  # its last chance to say that something went wrong
                with self._changed:
                    self.is_whole = True
                    self._changed.notify_all()
                self._keep(validator)
        except Exception as error:
            self.error = error
        finally:
            self._end()

    def discard(self) -> None:
        """Removes the partial file, at the end of the process."""
        with contextlib.suppress(OSError):
            if self.is_own and same_file(self._descriptor, self.files.partial):
                os.unlink(self.files.partial)

    def release(self) -> None:
        """Ends the lock: other processes look what has become of the shard."""
        close(self._descriptor)

    def _fetch(self, stream: BinaryIO, room: CacheRoom) -> bool:
        """Copies the stream into the partial file; returns whether all of it is there."""
        read = getattr(stream, "read1", stream.read)
        granted = _size_of(stream) or 0
        if granted and not self._reserve(room, granted):
            self._give_up(b"", stream)
            return False
        while chunk := read(_CHUNK_BYTES):
            if self._stopping:
                stream.close()
                return False
            needed = self.position + len(chunk)
            if needed > granted:
                granted = self._reserve(room, *(max(needed, self.position + step) for step in _STEPS_BYTES))
                if not granted:
                    self._give_up(chunk, stream)
                    return False
            written = self._write(chunk)
            self._advance(written)
            if written < len(chunk):
                self._give_up(chunk[written:], stream)
                return False
        return True

    def _reserve(self, room: CacheRoom, *sizes: int) -> int:
        """Reserves the first of the sizes that there is room for; returns it, or 0."""
        try:
            for size in sizes:
                if room.reserve(self.files.partial, size):
                    return size
            self._warn(
                "room",
                f"there is no room for {sizes[-1]} bytes beside what is in use or was put there by hand: a "
                "cache needs room for the shards that all workers read at a time, and for the next ones",
            )
        except OSError as error:
            self._warn("trouble", f"{type(error).__name__}: {error}")
        return 0

    def _write(self, chunk: bytes) -> int:
        """Writes as much of a chunk as the disk takes."""
        view = memoryview(chunk)
        written = 0
        try:
            while written < len(view):
                written += os.write(self._descriptor, view[written:])
        except OSError as error:
            self._warn("disk", f"{type(error).__name__}: {error}")
        self._checksum = zlib.crc32(view[:written], self._checksum)
        return written

    def _advance(self, count: int) -> None:
        with self._changed:
            self.position += count
            self._changed.notify_all()

    def _give_up(self, chunk: bytes, stream: BinaryIO) -> None:
        with self._changed:
            self._rest = chunk, stream
            abandoned = self.readers == 0
        if abandoned:
            self._close_rest()

    def _close_rest(self) -> None:
        rest = self.take_rest()
        if rest is not None:
            with contextlib.suppress(Exception):  # nobody reads it any more: what it says is of no interest
                rest[1].close()

    def _keep(self, validator: Validator | None) -> None:
        """Gives the shard, whose bytes are all there, its name."""
        try:
            if validator is not None and not validator(self.files.partial):
                self._warn(
                    "validator",
                    "it is not a whole shard: an error page of a server, or a download that broke off",
                )
                return
            os.fsync(self._descriptor)
            self.files.publish(self._checksum)
        except OSError as error:
            self._warn("trouble", f"{type(error).__name__}: {error}")

    def _warn(self, kind: str, why: str) -> None:
        """Says why shards are not kept, once for each directory and kind, to those who wait for one."""
        key = (self.files.directory, kind)
        if self.readers == 0 or key in _warned:
            return
        _warned.add(key)
        warnings.warn(
            f"{without_credentials(self.url)} is streamed, but not kept in the cache {self.files.directory}: "
            f"{why} (this is said once)",
            RuntimeWarning,
            stacklevel=2,
        )

    def _end(self) -> None:
        with _registry:
            _fills.pop(self.files.partial, None)
        self.discard()
        self.release()
        with self._changed:
            self.ended = True
            self._changed.notify_all()


def begin(
    url: str,
    files: CacheFiles,
    room: CacheRoom,
    opener: Opener,
    is_there: Callable[[], bool],
    validator: Validator | None = None,
    verbose: bool = False,
) -> tuple[Fill | None, int | None]:
    """Begins to fetch a shard, or finds who is fetching it.

    Args:
        url: Its URL.
        files: Its files in the cache.
        room: Of the cache directory.
        opener: ``opener(url, 0)`` gives the shard's bytes.
        is_there: Whether the shard is there by now.
        validator: Says of the path of a file whether it is a shard; others are not kept.
        verbose: Tell on standard error.

    Returns:
        The fill, which counts the caller among its readers (``None`` if it is another process's), and a
        descriptor of the partial file, which the caller closes. ``(None, None)`` where things have changed:
        look again whether the shard is there.

    Raises:
        OSError: The cache directory is not writable, or has no locks.
        RuntimeError: No thread can be started any more.
    """
    with _registry:
        fill = _fills.get(files.partial)
        claimed = _claim(url, files, is_there) if fill is None else None
        following = open_partial(files.partial)
        if claimed is None:
            if fill is not None and following is not None:
                fill.join()
            return (fill, following) if following is not None else (None, None)
        thread = threading.Thread(
            target=claimed.run,
            args=(room, opener, validator, verbose),
            name=f"fetching {files.name}",
            daemon=True,
        )
        claimed.join()
        _fills[files.partial] = claimed
        try:
            room.remove_stale()
            thread.start()
        except BaseException:
            del _fills[files.partial]
            claimed.discard()
            claimed.release()
            if following is not None:
                os.close(following)
            raise
        return claimed, following


def fills(directory: str) -> list[Fill]:
    """Those of this process that are under way in a cache directory, the oldest first."""
    with _registry:
        return [fill for fill in _fills.values() if fill.files.directory == directory]


def open_partial(path: str) -> int | None:
    """A descriptor of a partial file, or ``None`` if it is gone."""
    try:
        try:
            return os.open(
                path, os.O_RDWR | os.O_CLOEXEC
            )  # network file systems lock only what may be written
        except PermissionError:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def _claim(url: str, files: CacheFiles, is_there: Callable[[], bool]) -> Fill | None:
    """The right to fetch a shard: an empty partial file, locked. ``None`` if another process has it."""
    files.make_directories()
    while True:
        descriptor = os.open(files.partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        keep_from_forks(descriptor)
        try:
            if not try_exclusive(descriptor):
                close(descriptor)
                return None
            if same_file(descriptor, files.partial):
                if is_there():
                    os.unlink(files.partial)
                    close(descriptor)
                    return None
                if os.fstat(descriptor).st_size == 0:
                    return Fill(url, files, descriptor)
                # Its process is gone. Readers of it may be left, and go on in the file that replaces it.
                os.unlink(files.partial)
        except BaseException:
            close(descriptor)
            raise
        close(descriptor)


def _size_of(stream: BinaryIO) -> int | None:
    """A stream's bytes, where it or its raw stream says so in an attribute ``size``."""
    size = getattr(stream, "size", None) or getattr(getattr(stream, "raw", None), "size", None)
    return size if isinstance(size, int) else None


def _discard_all() -> None:
    for fill in list(_fills.values()):
        fill.discard()


def _forget_in_child() -> None:
    global _registry
    _registry = threading.Lock()
    _fills.clear()


os.register_at_fork(after_in_child=_forget_in_child)
atexit.register(_discard_all)
