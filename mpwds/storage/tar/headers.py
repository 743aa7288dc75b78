"""The headers of tar archives: what they state, and the errors for headers that cannot be.

A header is 512 bytes: name, size, kind and checksum of a member, whose data follow in whole blocks.
Extension headers (GNU, pax) come before a member's own and replace its name or size.

:class:`MemberFinder` finds the files in a window of an archive, for reading in order and for random access.
It is the hot path, with the common case inline: a regular file whose header differs from the last one in
name, size and checksum alone takes 0.8 us. ``scan`` (``scanning.py``) goes past damage; a property test holds
both equal to ``tarfile``.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol
from zlib import adler32

from mpwds.errors import ShardError

BLOCK: Final = 512
NO_END = "ends without the end-of-archive blocks: it may be truncated"
"""How the reason of a damage ends that took no member."""

ZERO_BLOCK: Final = bytes(BLOCK)

LAYOUT: Final = struct.Struct("148s8s356s")
"""A header in three parts: before its checksum, the checksum, and the rest, which starts with its kind."""

NAME_BYTES: Final = 100
SIZE: Final = slice(124, 136)

# Kinds, as in POSIX.1-2001 and GNU tar. Those in none of these groups carry data and are skipped.
REGULAR: Final = b"0\x007"
WITHOUT_DATA: Final = b"123456"
EXTENSIONS: Final = b"xXgLK"
GLOBAL: Final = ord("g")
SPARSE: Final = ord("S")

_KNOWN_LIMIT = 1 << 16


class _Known(dict[bytes, int]):
    """The numbers that header fields stand for, computed once for each field."""

    def __init__(self, number_in: Callable[[bytes], int]) -> None:
        self._number_in = number_in

    def __missing__(self, field: bytes) -> int:
        if len(self) >= _KNOWN_LIMIT:
            self.clear()
        number = self[field] = self._number_in(field)
        return number


def _checksum_in(field: bytes) -> int:
    """The sum that all other bytes of a header must have."""
    try:
        return int(field.partition(b"\0")[0], 8) - len(field) * ord(" ")
    except ValueError:
        return 1 << 40  # which no header has


def _size_in(field: bytes) -> int:
    """The number in a size field; -1 if there is none."""
    if field[0] & 0x80:  # base 256, big-endian, after a bit that marks it
        return int.from_bytes(field, "big") & ((1 << 95) - 1)
    try:
        return max(-1, int(field.partition(b"\0")[0].strip() or b"0", 8))
    except ValueError:
        return -1


checksums: Final = _Known(_checksum_in)
sizes: Final = _Known(_size_in)


def back_sum(back: bytes) -> int:
    """The number that makes ``adler32(front) & 0xFFFF`` the sum of both parts of a header.

    The low half of adler32 is one plus the sum of the bytes modulo 65521, which 256 bytes do not reach. It is
    ten times as fast as ``sum``.
    """
    return (adler32(back[:200]) & 0xFFFF) + (adler32(back[200:]) & 0xFFFF) - 3


def has_valid_checksum(front: bytes, stored: bytes, back: bytes) -> bool:
    """True if a header's bytes add up to its checksum, whose own eight bytes count as spaces."""
    expected = checksums[stored]
    if expected == (adler32(front) & 0xFFFF) + back_sum(back):
        return True
    # Some old programs add up signed bytes.
    rest = front + back
    return expected == sum(rest) - 256 * len(rest.translate(None, _BELOW_128))


def begins_archive(block: bytes) -> bool:
    """True if an archive can start with this block: a header or zeros."""
    if len(block) < BLOCK:
        return not any(block)
    return block == ZERO_BLOCK or has_valid_checksum(*LAYOUT.unpack(block))


def directory_of(back: bytes) -> bytes:
    """The directory that ustar keeps apart from the name, with a slash after it; often empty."""
    if back[189] and back[101:107] == b"ustar\0":
        return back[189:344].partition(b"\0")[0] + b"/"
    return b""


EXTENSION_LIMIT_BYTES: Final = 16 * 1024 * 1024

_BELOW_128: Final = bytes(range(128))
TIME_ALONE: Final = [b"%d mtime=" % length for length in range(100)]
"""By length, the start of an extension header's body that holds a modification time and nothing else.

Python's ``tarfile``, and so webdataset, writes such a header before each member. It is skipped.
"""

_RECORD = re.compile(rb"([0-9]{1,20}) ([^=]*)=")


class Extended(NamedTuple):
    """The name and size that replace the header's."""

    name: str | None = None
    size: int | None = None


NOTHING: Final = Extended()


def extend(known: Extended, kind: int, body: bytes, url: str, position: int) -> Extended:
    """``known``, a member's extensions so far, with the name and size that another extension header states.

    Raises ``ShardError`` if a record is damaged, or the member is a GNU sparse file.
    """
    if kind == ord("K"):  # a link's long target
        return known
    if kind == ord("L"):
        return Extended(body.partition(b"\0")[0].decode("utf-8", "surrogateescape"), known.size)
    start = 0
    while start < len(body) and body[start]:
        # length keyword=value newline, where the length counts the whole record
        match = _RECORD.match(body, start)
        if match is None or body[(stop := start + int(match[1])) - 1 : stop] != b"\n" or stop <= match.end():
            raise _bad_record(url, position, body[start : start + 40])
        keyword = match[2]
        if keyword == b"path" and match.end() < stop - 1:
            name = body[match.end() : stop - 1]
            known = Extended(name.decode("utf-8", "surrogateescape"), known.size)
        elif keyword == b"size" and match.end() < stop - 1:
            size = body[match.end() : stop - 1]
            if not size.isdigit() or len(size) > 20:
                raise _bad_record(url, position, body[start : start + 40])
            known = Extended(known.name, int(size))
        elif keyword.startswith(b"GNU.sparse."):
            raise sparse(url, position)
        start = stop
    return known


class Archive(Protocol):
    """An archive's name for errors, and its end (``sys.maxsize`` if unknown)."""

    url: str
    end: int


Found = tuple[str, int, int, int]
"""A regular file: name, offset of its first header, offset and size of its data."""

WINDOW_BYTES = 4 * 1024, 1024 * 1024
"""``SeekableArchive.window_bytes`` of a file."""


class SeekableArchive(Archive, Protocol):
    """An archive that can be read at any offset."""

    window_bytes: tuple[int, int]
    """The least and the most bytes to read at a time. The least takes as long as to begin elsewhere."""

    def read(self, size: int, offset: int) -> bytes | memoryview: ...


# Third parts of headers (see ``LAYOUT``) that were found to be a regular file's and an extension's, and what
# they add to the checksum. Of the regular file: the directory in it, and whether it is a v7 archive's, where
# only the name tells directories. Shared by all archives: most have the same in each header.
_known: tuple[bytes, int, bytes, bool, bytes, int] = b"", 0, b"", False, b"", 0


def find_all_members(
    archive: SeekableArchive,
) -> Iterator[tuple[bytes | memoryview, int, list[Found]]]:
    """Yields the regular files of a whole archive in order: windows of it, their offsets, the files in each.

    Reads headers, and no data where it is large. A global pax header is not applied to the members after it.

    Raises:
        ShardError: The archive is damaged or truncated, or holds a sparse file.
    """
    least, most = archive.window_bytes
    size = least
    position = 0
    finder = MemberFinder(archive)
    while position < archive.end:
        window = archive.read(min(size, archive.end - position), position)
        following = position + finder.find(window, position)
        yield window, position, finder.found
        if following == position:
            if position + len(window) >= archive.end:
                return  # only zeros are left, less than a block of them
            size *= 2
        elif following <= position + 2 * len(window):  # small members: read them all
            size = min(2 * size, most)
        else:
            size = least
        position = following


def find_members(window: bytes | memoryview, base: int, archive: Archive) -> list[Found]:
    """The regular files whose headers are in ``window``, the bytes of an archive from a header on."""
    finder = MemberFinder(archive)
    finder.find(window, base)
    return finder.found


def size_of(front: bytes, kind: int, extended: Extended, archive: Archive, position: int) -> int:
    """The bytes of data after the header at ``position``, all of which are in the archive.

    ``front`` is the header's first part, ``extended`` what the extensions before it state: the size of the
    member, not of other extensions. Raises ``ShardError`` if the size is not valid, the data are not all
    there, or it is a sparse file.
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
        raise ShardError(
            f"extension header at offset {position} of {archive.url} says it has {size} bytes, more than "
            f"{EXTENSION_LIMIT_BYTES}: the shard is damaged"
        )
    return size


def name_of(front: bytes, directory: bytes, extended: Extended) -> str:
    """A member's name; ``directory`` is ``directory_of`` its header."""
    if extended.name is not None:
        return extended.name
    return (directory + front[:NAME_BYTES].partition(b"\0")[0]).decode("utf-8", "surrogateescape")


class MemberFinder:
    """Finds the regular files of an archive, window after window of it.

    With ``applies_global``, a global pax header is applied to the members after it.

    Attributes:
        found: The files whose headers are in the last window; the data of members need not be in it.
        after_zeros: Where the zero blocks end that were found last; -1 before.
    """

    def __init__(self, archive: Archive, applies_global: bool = False) -> None:
        self._archive = archive
        self._applies_global = applies_global
        self._for_all = NOTHING
        self.found: list[Found] = []
        self.after_zeros = -1

    def find(self, window: bytes | memoryview, base: int, at: int = 0) -> int:
        """Finds the files in a window, the bytes of the archive from ``base`` on, where a header is ``at``.

        Returns:
            Where to continue, as an index in the window or beyond it: ``at`` if the first member's headers
            are not all in the window.

        Raises:
            ShardError: The archive is damaged, or holds a sparse file. The files before are in ``found``.
        """
        global _known
        known_back, known_sum, directory, is_v7, pax_back, pax_sum = _known
        self.found = []
        add = self.found.append
        archive = self._archive
        unpack = LAYOUT.unpack_from
        if isinstance(window, memoryview):
            window = bytes(window)
        first = -1  # index of the member's first header, once an extension header was there
        extended = self._for_all
        available = len(window)
        last = available - BLOCK
        end = archive.end - base
        while at <= last:
            front, stored, back = unpack(window, at)
            if back != known_back or checksums[stored] != (adler32(front) & 0xFFFF) + known_sum:
                seen = back == pax_back and checksums[stored] == (adler32(front) & 0xFFFF) + pax_sum
                if not seen and not has_valid_checksum(front, stored, back):
                    header = window[at : at + BLOCK]
                    if header == ZERO_BLOCK and first < 0:
                        at += BLOCK
                        self.after_zeros = base + at
                        continue
                    raise no_header(header, archive, base + at, self.after_zeros)
                kind = back[0]
                if seen or kind in EXTENSIONS:
                    size = sizes[front[SIZE]]
                    start = at + BLOCK
                    following = start + size + (-size & 511)
                    if size < 0 or following > available:
                        size_of(front, kind, extended, archive, base + at)  # raises if it is wrong
                        return at if first < 0 else first
                    is_time = (
                        size < 100
                        and window.startswith(TIME_ALONE[size], start)
                        and window.find(b"\n", start, start + size) == start + size - 1
                    )
                    if not is_time and (kind != GLOBAL or self._applies_global):
                        body = window[start : start + size]
                        extended = extend(extended, kind, body, archive.url, base + at)
                        if kind == GLOBAL:
                            self._for_all = extend(self._for_all, kind, body, archive.url, base + at)
                    if kind != GLOBAL:
                        first = at if first < 0 else first
                        if not seen:
                            pax_back, pax_sum = back, back_sum(back)
                            _known = known_back, known_sum, directory, is_v7, pax_back, pax_sum
                    at = following
                    continue
                if kind not in REGULAR:
                    size = size_of(front, kind, extended, archive, base + at)
                    at += BLOCK + size + (-size & 511)
                    first, extended = -1, self._for_all
                    continue
                known_back, known_sum = back, back_sum(back)
                directory, is_v7 = directory_of(back), not kind
                _known = known_back, known_sum, directory, is_v7, pax_back, pax_sum

            size = sizes[front[SIZE]]
            name = None
            if extended is not NOTHING:
                name = extended.name
                if extended.size is not None:
                    size = extended.size
                extended = self._for_all
            if name is None:
                raw_name = front.partition(b"\0")[0]
                if len(raw_name) > NAME_BYTES:  # a name that fills its field has no zero after it
                    raw_name = raw_name[:NAME_BYTES]
                if directory:
                    raw_name = directory + raw_name
                try:
                    name = raw_name.decode()
                except UnicodeDecodeError:
                    name = raw_name.decode("utf-8", "surrogateescape")
            start = at + BLOCK
            following = start + size + (-size & 511)
            if size < 0:
                raise bad_size(front, archive, base + at)
            if following > end:
                raise data_missing(archive, base + at, size)
            if not (is_v7 and name.endswith("/")):
                add((name, base + (at if first < 0 else first), base + start, size))
            at, first = following, -1
        if available >= end:
            if at < available and (first >= 0 or any(window[at:])):
                raise no_header(window[at:], archive, base + at, self.after_zeros)
            if first >= 0:
                why = "it ends after an extension header, before its member"
                raise truncated(archive, base + first, why)
        return at if first < 0 else first


def no_header(block: bytes, source: Archive, position: int, after_zeros: int = -1) -> ShardError:
    """The error for a block, perhaps cut off, that is not a header; zero blocks ended at ``after_zeros``."""
    if after_zeros == position:
        number = "bytes" if source.end == sys.maxsize else f"{source.end - position} bytes"
        return ShardError(
            f"{number} at offset {position} of {source.url} follow the end of the archive and are no tar "
            "header: cut them off, or write the shard again if more members should follow"
        )
    if len(block) < BLOCK:
        return truncated(source, position, f"{len(block)} bytes are left of a header's {BLOCK}")
    if block == ZERO_BLOCK:
        return truncated(source, position, "the archive ends after an extension header, before its member")
    expected = sum(block[:148]) + 8 * ord(" ") + sum(block[156:])
    try:
        stored = f"0o{int(block[148:156].partition(bytes(1))[0], 8):o}"
    except ValueError:
        stored = repr(block[148:156])
    return ShardError(
        f"tar header at offset {position} of {source.url} has checksum {stored}, expected 0o{expected:o}: "
        "the shard is damaged or not a tar file"
    )


def truncated(source: Archive, position: int, why: str) -> ShardError:
    return ShardError(f"{source.url} is truncated or damaged in the member at offset {position}: {why}")


def data_missing(source: Archive, position: int, size: int) -> ShardError:
    return truncated(source, position, f"its {size} bytes of data reach beyond the end at {source.end}")


def cut_off(source: Archive, position: int) -> ShardError:
    return ShardError(
        f"{source.url} is cut off: it ends at offset {position} without the end-of-archive blocks, and "
        "nothing else tells its length. If no member is missing, append them: head -c 1024 /dev/zero >> FILE"
    )


def nothing_there(source: Archive, offset: int) -> ShardError:
    length = "" if 0 < offset == source.end else f" has {source.end} bytes,"
    return ShardError(f"{source.url}{length} nothing can be read at offset {offset}: it is truncated")


def bad_size(front: bytes, source: Archive, position: int) -> ShardError:
    return ShardError(
        f"tar header at offset {position} of {source.url} has size {front[SIZE]!r}, expected an octal "
        "number: the shard is damaged"
    )


def sparse(url: str, position: int) -> ShardError:
    return ShardError(
        f"tar header at offset {position} of {url} is of a GNU sparse file, which is not read: "
        "write the archive without --sparse"
    )


def _bad_record(url: str, position: int, record: bytes) -> ShardError:
    return ShardError(
        f"pax header at offset {position} of {url} has the bad record {record!r}: the shard is damaged"
    )
