"""Reads what a header states of a member, and finds the members of an archive without their data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol
from zlib import adler32

from mpwds.storage.tar.damage import (
    Archive,
    bad_size,
    data_missing,
    extension_too_large,
    no_header,
    truncated,
)
from mpwds.storage.tar.header import (
    BLOCK,
    EXTENSION_LIMIT_BYTES,
    EXTENSIONS,
    GLOBAL,
    LAYOUT,
    NAME_BYTES,
    NOTHING,
    REGULAR,
    SIZE,
    SPARSE,
    WITHOUT_DATA,
    ZERO_BLOCK,
    Extended,
    back_sum,
    checksums,
    directory_of,
    extend,
    has_valid_checksum,
    sizes,
    sparse,
)

Found = tuple[str, int, int, int]
"""A regular file: name, offset of its first header, offset and size of its data."""

WINDOW_BYTES = 4 * 1024, 1024 * 1024
"""``SeekableArchive.window_bytes`` of a file."""


class SeekableArchive(Archive, Protocol):
    """An archive that can be read at any offset.

    Attributes:
        window_bytes: The least and the most bytes to read at a time. To read the least takes about as long as
            to begin elsewhere.
    """

    @property
    def window_bytes(self) -> tuple[int, int]: ...

    def read(self, size: int, offset: int) -> bytes | memoryview: ...


class _Regular(NamedTuple):
    """The third part of a regular file's header, and what it says: see ``LAYOUT``."""

    back: bytes
    sum: int
    directory: bytes
    is_v7: bool  # where only the name tells directories


_last = _Regular(b"", 0, b"", False)  # shared by all archives: most have the same in each header


def find_all_members(
    archive: SeekableArchive,
) -> Iterator[tuple[bytes | memoryview, int, list[Found]]]:
    """Yields the regular files of a whole archive in order: windows of it, their offsets, the files in each.

    Reads headers, and no data where it is large. A global pax header is not applied to the members behind it.

    Raises:
        ShardError: The archive is damaged or truncated, or holds a sparse file.
    """
    least, most = archive.window_bytes
    size = least
    position, after_zeros = 0, -1
    while position < archive.end:
        window = archive.read(min(size, archive.end - position), position)
        found, following, after_zeros = find_members(window, position, archive, after_zeros)
        yield window, position, found
        if following == position:
            if position + len(window) >= archive.end:
                raise truncated(archive, position, "its header is not complete")
            size *= 2
        elif following <= position + 2 * len(window):  # small members: read them all
            size = min(2 * size, most)
        else:
            size = least
        position = following


def size_of(front: bytes, kind: int, extended: Extended, archive: Archive, position: int) -> int:
    """The bytes of data after the header at ``position``, all of which are in the archive.

    The size that an extension states is that of the member, not of other extensions before the member.

    Args:
        front: The header's first part: see ``LAYOUT``.
        kind: Its kind.
        extended: What the extensions before it state.
        archive: Its name and its end, for errors.
        position: Its offset.

    Raises:
        ShardError: The size is not valid, the data are not all there, or it is a sparse file.
    """
    if kind == SPARSE:
        raise sparse(archive.url, position)
    is_extension = kind in EXTENSIONS
    size = 0
    if kind not in WITHOUT_DATA:
        size = sizes[front[SIZE]] if is_extension or extended.size is None else extended.size
    if size < 0:
        raise bad_size(front, archive, position)
    if position + BLOCK + size + (-size & 511) > archive.end:
        raise data_missing(archive, position, size)
    if is_extension and size > EXTENSION_LIMIT_BYTES:
        raise extension_too_large(archive, position, size, EXTENSION_LIMIT_BYTES)
    return size


def name_of(front: bytes, directory: bytes, extended: Extended) -> str:
    """A member's name; ``directory`` is ``directory_of`` its header."""
    if extended.name is not None:
        return extended.name
    return (directory + front[:NAME_BYTES].partition(b"\0")[0]).decode("utf-8", "surrogateescape")


def find_members(
    window: bytes | memoryview, base: int, archive: Archive, after_zeros: int = -1
) -> tuple[list[Found], int, int]:
    """The regular files whose headers are in ``window``, the bytes of an archive from ``base`` on.

    ``base`` is the offset of a header. A global pax header is not applied to the members behind it.

    Args:
        window: Bytes of the archive; the data of members need not be in it.
        base: Their offset.
        archive: Its name and its end, for errors.
        after_zeros: Where the zero blocks end that were found last.

    Returns:
        The files; the offset from which to continue, which is ``base`` if the first member's headers are not
        all in the window; and where the zero blocks end that were found last.

    Raises:
        ShardError: The archive is damaged, or holds a sparse file.
    """
    global _last
    known_back, known_sum, directory, is_v7 = _last
    found: list[Found] = []
    unpack = LAYOUT.unpack_from
    first = -1  # offset of the member's first header, once an extension header was there
    extended = NOTHING
    at = 0
    last = len(window) - BLOCK
    end = archive.end
    while at <= last:
        front, stored, back = unpack(window, at)
        if back != known_back or checksums[stored] != (adler32(front) & 0xFFFF) + known_sum:
            position = base + at
            if not has_valid_checksum(front, stored, back):
                header = bytes(window[at : at + BLOCK])
                if header == ZERO_BLOCK and first < 0:
                    at += BLOCK
                    after_zeros = base + at
                    continue
                raise no_header(header, archive, -1, position, after_zeros)
            kind = back[0]
            size = size_of(front, kind, extended, archive, position)
            following = at + BLOCK + size + (-size & 511)
            if kind in EXTENSIONS:
                if following > len(window):
                    return found, position if first < 0 else first, after_zeros
                if kind != GLOBAL:
                    body = bytes(window[at + BLOCK : at + BLOCK + size])
                    extended = extend(extended, kind, body, archive.url, position)
                    first = position if first < 0 else first
                at = following
                continue
            if kind not in REGULAR:
                at, first, extended = following, -1, NOTHING
                continue
            known_back, known_sum = back, back_sum(back)
            directory, is_v7 = directory_of(back), not kind
            _last = _Regular(known_back, known_sum, directory, is_v7)

        size = sizes[front[SIZE]]
        if extended is NOTHING:
            name = (directory + front[:NAME_BYTES].partition(b"\0")[0]).decode("utf-8", "surrogateescape")
        else:
            name = name_of(front, directory, extended)
            size, extended = size if extended.size is None else extended.size, NOTHING
        start = base + at + BLOCK
        following = at + BLOCK + size + (-size & 511)
        if size < 0 or base + following > end:
            raise bad_size(front, archive, base + at) if size < 0 else data_missing(archive, base + at, size)
        if not (is_v7 and name.endswith("/")):
            found.append((name, base + at if first < 0 else first, start, size))
        at, first = following, -1
    if base + len(window) >= archive.end and at < len(window):
        rest = bytes(window[at:])
        if any(rest) or first >= 0:
            raise no_header(rest, archive, -1, base + at, after_zeros)
    if first >= 0:
        if base + len(window) >= archive.end:
            raise truncated(archive, first, "it ends after an extension header, before its member")
        return found, first, after_zeros
    return found, base + at, after_zeros
