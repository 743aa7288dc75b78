"""Scans a tar archive past its damage: what it holds, and where it cannot be read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

from mpwds.errors import ShardError
from mpwds.storage.streams.gopen import open_at
from mpwds.storage.tar import headers
from mpwds.storage.tar.entries import MAX_DECOMPRESSED_BYTES
from mpwds.storage.tar.headers import BLOCK, LAYOUT, NO_END, extend, has_valid_checksum
from mpwds.storage.tar.input import Input, OpenAt, open_archive


class ScannedMember(NamedTuple):
    """A member of an archive, all of whose bytes are there."""

    name: str  # bytes that are not UTF-8 become surrogates
    offset: int  # of its first header
    size: int  # bytes of data
    header: bytes  # all of its headers, as they are in the archive
    is_file: bool  # rather than a directory, a link or a device
    data: bytes | None  # None if it was not asked for

    @property
    def end(self) -> int:
        """The offset after its data and padding."""
        return self.offset + len(self.header) + _padded(self.size)

    @property
    def blocks(self) -> bytes:
        """The whole member as it is in the archive; without data, only its headers."""
        return blocks(self.header, self.data)


class Damage(NamedTuple):
    """A place that cannot be read, and why: bytes ``offset`` to ``end``, which may be the archive's end."""

    offset: int
    end: int
    reason: str


def scan(
    url: str, wants: Callable[[str], object] = lambda name: False, *, open: OpenAt = open_at
) -> Iterator[ScannedMember | Damage]:
    """Yields the members of a tar archive in order, and the places where it is damaged.

    After damage, reading continues at the next block that is a header. So members inside a damaged member
    that is a tar archive itself may appear. Damage to compressed bytes ends an archive. Of a local
    uncompressed file, only headers and the data asked for are read.

    Args:
        wants: Takes the name of a regular file, returns whether to read its data.
        url, open: As for ``read_members``.

    Raises:
        OSError: The archive cannot be opened or read.
        ShardError: It is empty.
    """
    with closing(open_archive(url, 0, open, MAX_DECOMPRESSED_BYTES)) as source:
        yield from _Scan(source, wants).entries()


def blocks(header: bytes, data: bytes | None) -> bytes:
    """A member's headers and data, padded as in an archive."""
    return header if data is None else header + data + bytes(_padded(len(data)) - len(data))


class _Scan:
    def __init__(self, source: Input, wants: Callable[[str], object]) -> None:
        self._source = source
        self._wants = wants
        self._for_all = headers.NOTHING
        self._position = 0
        self._after_zeros = 0
        self._can_go_on = True  # what is decompressed ends at the first error

    def entries(self) -> Iterator[ScannedMember | Damage]:
        while True:
            start = self._position
            try:
                entry = self._next()
            except ShardError as error:
                following = self._next_header()
                yield Damage(max(start, self._after_zeros), self._position, str(error))
                if not following:
                    return
                continue
            if entry is None:
                break
            yield entry
        if self._position > self._after_zeros:
            source, end = self._source, self._position
            why = f"{source.url} {NO_END}" if source.detects_truncation else headers.cut_off(source, end)
            yield Damage(end, end, str(why))

    def _next(self) -> ScannedMember | None:
        """The next member; ``None`` at the end. After a ``ShardError``, the position is that of the fault."""
        source, first = self._source, self._position
        extended = self._for_all
        parts: list[bytes] = []
        while True:
            position = self._position
            header = self._read(position, BLOCK)
            if not parts and not any(header):
                if len(header) < BLOCK:
                    return None
                first = self._position = self._after_zeros = position + BLOCK
                continue
            if len(header) < BLOCK or not has_valid_checksum(*LAYOUT.unpack(header)):
                raise headers.no_header(header, source, position, self._after_zeros or -1)
            parts.append(header)
            front, _, back = LAYOUT.unpack(header)
            kind = back[0]
            size = headers.size_of(front, kind, extended, source, position)
            if kind in headers.EXTENSIONS:
                body = self._read(position + BLOCK, _padded(size))
                if len(body) < _padded(size):
                    raise headers.data_missing(source, position, size)
                parts.append(body)
                self._position = position + len(body)  # a stream does not go back
                extended = extend(extended, kind, body[:size], source.url, position)
                if kind == headers.GLOBAL:
                    self._for_all = extend(self._for_all, kind, body[:size], source.url, position)
                self._position = position + BLOCK + len(body)
                continue
            name = headers.name_of(front, headers.directory_of(back), extended)
            is_file = kind in headers.REGULAR and not (kind == 0 and name.endswith("/"))
            data = self._data(position, size, name, is_file and bool(self._wants(name)))
            self._position = position + BLOCK + _padded(size)
            return ScannedMember(name, first, size, b"".join(parts), is_file, data)

    def _data(self, position: int, size: int, name: str, wanted: bool) -> bytes | None:
        """A member's data, or ``None`` unless ``wanted``. Raises ``ShardError`` if it is not all there."""
        source, start = self._source, position + BLOCK
        end = start + _padded(size)
        data = None
        if wanted and size > source.largest:
            raise source.too_large(position, name, size)
        if end <= source.end:
            if wanted:
                data = self._read(start, size, end - start - size)
            elif source.end == sys.maxsize:
                self._read(end, 0)  # the end of a stream is known once it is reached
            if end > source.end:
                self._position = source.end
        if end > source.end:
            raise headers.data_missing(source, position, size)
        return data

    def _read(self, start: int, size: int, padding: int = 0) -> bytes:
        """Bytes of the archive; fewer only at its end."""
        source = self._source
        try:
            return source.data(start, max(0, min(size, source.end - start)), padding)
        except ShardError:
            self._can_go_on = False
            raise

    def _next_header(self) -> bool:
        """Goes to the next block that is a header; if there is none, to the end, if that is known."""
        source = self._source
        position = self._position + BLOCK
        while self._can_go_on and position + BLOCK <= source.end:
            try:
                window, at = source.window(position, BLOCK)
            except ShardError:
                break
            for start in range(at, len(window) - BLOCK + 1, BLOCK):
                if has_valid_checksum(*LAYOUT.unpack(window[start : start + BLOCK])):
                    self._position = position
                    return True
                position += BLOCK
            if len(window) - at < BLOCK:
                break
        if source.end < sys.maxsize:
            self._position = source.end
        return False


def _padded(size: int) -> int:
    return size + -size % BLOCK
