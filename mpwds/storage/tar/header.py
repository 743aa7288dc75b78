"""Headers of a tar archive: name, size, kind and checksum, and the extensions of GNU and pax."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Final, NamedTuple
from zlib import adler32

from mpwds.errors import ShardError

BLOCK: Final = 512
ZERO_BLOCK: Final = bytes(BLOCK)

LAYOUT: Final = struct.Struct("148s8s356s")
"""A header in three parts: before its checksum, the checksum, and the rest, which starts with its kind.

Members that were written together differ in the first part only, so a reader that has seen the third
before needs to look at nothing but name, size and checksum.
"""

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
    if field[0] & 0x80:  # base 256, big-endian, behind a bit that marks it
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
    return expected == sum(byte - 256 if byte > 127 else byte for byte in front + back)


def begins_archive(block: bytes) -> bool:
    """True if an archive can start with this block: a header or zeros."""
    if len(block) < BLOCK:
        return not any(block)
    return block == ZERO_BLOCK or has_valid_checksum(*LAYOUT.unpack(block))


def directory_of(back: bytes) -> bytes:
    """The directory that ustar keeps apart from the name, with a slash behind it; often empty."""
    if back[189] and back[101:107] == b"ustar\0":
        return back[189:344].partition(b"\0")[0] + b"/"
    return b""


EXTENSION_LIMIT_BYTES: Final = 16 * 1024 * 1024

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

    Example:
        >>> extend(NOTHING, ord("x"), b"18 path=real/name\\n", "x.tar", 0)
        Extended(name='real/name', size=None)
    """
    if kind == ord("K"):  # a link's long target
        return known
    if kind == ord("L"):
        return known._replace(name=body.partition(b"\0")[0].decode("utf-8", "surrogateescape"))
    start = 0
    while start < len(body) and body[start]:
        # length keyword=value newline, where the length counts the whole record
        match = _RECORD.match(body, start)
        stop = start + int(match[1]) if match is not None else 0
        if match is None or stop <= match.end() or body[stop - 1 : stop] != b"\n":
            raise _bad_record(url, position, body[start : start + 40])
        keyword = match[2]
        if keyword == b"path" and match.end() < stop - 1:
            name = body[match.end() : stop - 1]
            known = known._replace(name=name.decode("utf-8", "surrogateescape"))
        elif keyword == b"size" and match.end() < stop - 1:
            size = body[match.end() : stop - 1]
            if not size.isdigit() or len(size) > 20:
                raise _bad_record(url, position, body[start : start + 40])
            known = known._replace(size=int(size))
        elif keyword.startswith(b"GNU.sparse."):
            raise sparse(url, position)
        start = stop
    return known


def sparse(url: str, position: int) -> ShardError:
    return ShardError(
        f"tar header at offset {position} of {url} is of a GNU sparse file, which is not read: "
        "write the archive without --sparse"
    )


def _bad_record(url: str, position: int, record: bytes) -> ShardError:
    return ShardError(
        f"pax header at offset {position} of {url} has the bad record {record!r}: the shard is damaged"
    )
