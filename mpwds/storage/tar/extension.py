"""What extension headers, GNU's and pax's, say of the member that follows them."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from mpwds.errors import ShardError

EXTENSION_LIMIT_BYTES: Final = 16 * 1024 * 1024

TIME_ALONE: Final = [b"%d mtime=" % length for length in range(100)]
"""How a body of so many bytes begins if it holds a modification time; nothing else, with one newline.

Python's ``tarfile``, and so webdataset, writes that before each member. It says nothing of interest.
"""

_RECORD = re.compile(rb"([0-9]{1,20}) ([^=]*)=")


class Extended(NamedTuple):
    """The name and size to take in place of the header's."""

    name: str | None = None
    size: int | None = None


NOTHING: Final = Extended()


def extend(known: Extended, kind: int, body: bytes, url: str, position: int) -> Extended:
    """``known`` with what another extension header says; ``known`` itself where that is nothing of interest.

    Args:
        known: What is known of the next member so far.
        kind: The extension header's kind, one of ``tar_header.EXTENSIONS``.
        body: Its data.
        url: The shard, for errors.
        position: The header's offset, for errors.

    Raises:
        ShardError: A record is damaged, or the member is a GNU sparse file.

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


def too_large(size: int, url: str, position: int) -> ShardError:
    return ShardError(
        f"extension header at offset {position} of {url} says it has {size} bytes, more than "
        f"{EXTENSION_LIMIT_BYTES}: the shard is damaged"
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
