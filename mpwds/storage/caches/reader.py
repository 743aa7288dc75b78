"""Reading a shard while it is fetched into a cache, by this process or another."""

from __future__ import annotations

import io
import os
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from mpwds.errors import StreamError
from mpwds.storage.caches.fill import Fill
from mpwds.storage.caches.locks import same_file, try_exclusive, unlock
from mpwds.storage.streams.urls import without_credentials

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_PAUSE_S = 0.01
_COMPARED_BYTES = 256 * 1024

patience_s = 60.0
"""A shard that another process fetches and that has not grown for so long is read from its URL."""


class Found(NamedTuple):
    """Where a shard's bytes can be read.

    Attributes:
        descriptor: Of the file that holds them, or gets them; the reader closes it. ``None`` where only the
            URL is left.
        fill: Who fetches it, if it is this process.
        is_complete: Whether the file holds all of them.
        paths: Names that the file may get when it is complete.
    """

    descriptor: int | None
    fill: Fill | None = None
    is_complete: bool = False
    paths: tuple[str, ...] = ()


class CacheReader(io.RawIOBase):
    """The bytes of a shard that is on its way into a cache.

    Whatever happens to the one who fetches it, the reader delivers each byte once: it looks again where the
    shard can be read, and goes on there behind what it has delivered, once it has seen that what comes
    before is the same. It has no ``fileno``, as the file is not complete.

    Args:
        url: The shard.
        offset: Where to start.
        found: Where it can be read.
        find: Looks that up again.
        opener: ``opener(url, offset)`` reads it from its URL.
        on_close: Called when it has been closed.
    """

    def __init__(
        self,
        url: str,
        offset: int,
        found: Found,
        find: Callable[[], Found],
        opener: Callable[[str, int], BinaryIO],
        on_close: Callable[[], None],
    ) -> None:
        self.name = without_credentials(url)
        self._url = url
        self._start = offset
        self._position = offset
        self._find = find
        self._opener = opener
        self._on_close = on_close
        self._found = found
        self._direct: BinaryIO | None = None
        self._pending = b""  # comes before what the direct stream holds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        if len(view) == 0:
            return 0
        count = self._read_at(view, self._position)
        self._position += count
        return count

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        self._let_go(self._found)
        if self._direct is not None:
            self._direct.close()
        self._on_close()

    def _read_at(self, view: memoryview, position: int) -> int:
        """Reads some bytes that are there at ``position``, waiting for them; 0 at the end of the shard."""
        waited = _Patience()
        while True:
            if self._direct is not None or self._found.descriptor is None:
                return self._read_direct(view, position)
            found = self._found
            descriptor = self._found.descriptor
            if count := os.preadv(descriptor, [view], position):
                return count
            fill = found.fill if found.fill is not None and found.fill.is_own else None
            if found.is_complete:
                return 0
            if fill is not None:
                fill.wait_beyond(position)
                if fill.position > position:
                    continue
                if fill.is_whole:
                    return 0
                self._go_on(fill, position)
            elif any(same_file(descriptor, path) for path in found.paths):
                self._found = found._replace(is_complete=True)
            elif not try_exclusive(descriptor):
                if waited.too_long(os.fstat(descriptor).st_size):
                    self._read_from_url(position)
            else:  # whoever fetched it is gone
                unlock(descriptor)
                if os.fstat(descriptor).st_size <= position:
                    self._look_again(position)

    def _go_on(self, fill: Fill, position: int) -> None:
        """Finds another way to the bytes from ``position`` on, which the fill did not bring."""
        if fill.error is not None:
            raise fill.error
        rest = fill.take_rest()
        if rest is None:
            self._look_again(position)
            return
        pending, stream = rest
        self._direct, self._pending = stream, pending
        skip = position - fill.position
        while skip > 0 and (skipped := self._take(min(skip, _COMPARED_BYTES))):
            skip -= len(skipped)

    def _look_again(self, position: int) -> None:
        """Goes on where the shard can be read now, if it begins with what has been delivered."""
        before = self._found
        self._found = self._find()
        try:
            if before.descriptor is None:
                return
            at = self._start
            new = memoryview(bytearray(_COMPARED_BYTES))
            while at < position and (self._found.descriptor is not None or self._direct is not None):
                old = os.pread(before.descriptor, min(_COMPARED_BYTES, position - at), at)
                count = self._read_at(new[: len(old)], at)
                if count == 0 or new[:count] != old[:count]:
                    raise StreamError(
                        f"{self.name}: it changed while it was read: the process that fetched it into the "
                        f"cache is gone, and byte {at} or one behind it is another one now",
                        self.name,
                        at,
                    )
                at += count
        finally:
            self._let_go(before)

    def _read_from_url(self, position: int) -> None:
        warnings.warn(
            f"{self.name} is read from its URL: the process that fetches it into the cache has not "
            f"got on for {patience_s:.0f} s",
            RuntimeWarning,
            stacklevel=2,
        )
        self._direct = self._opener(self._url, position)

    def _read_direct(self, view: memoryview, position: int) -> int:
        if self._direct is None:
            self._direct = self._opener(self._url, position)
        data = self._take(len(view))
        view[: len(data)] = data
        return len(data)

    def _take(self, count: int) -> bytes:
        if self._pending:
            data, self._pending = self._pending[:count], self._pending[count:]
            return data
        stream = self._direct
        if stream is None:
            return b""
        read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
        return read(count)

    def _let_go(self, found: Found) -> None:
        if found.descriptor is not None:
            os.close(found.descriptor)
        if found.fill is not None and found.fill.is_own:
            found.fill.leave()


class _Patience:
    """Waits for another process as long as its file grows."""

    def __init__(self) -> None:
        self._size = -1
        self._since = 0.0

    def too_long(self, size: int) -> bool:
        """Pauses; returns whether the size has been the same for longer than ``patience_s``."""
        now = time.monotonic()
        if size != self._size:
            self._size, self._since = size, now
        elif now - self._since > patience_s:
            return True
        time.sleep(_PAUSE_S)
        return False
