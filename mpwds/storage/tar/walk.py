"""Finds the members of a tar archive by their headers alone, without reading their data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from mpwds.errors import ShardError
from mpwds.storage.tar.damage import (
    bad_size,
    data_missing,
    extension_too_large,
    no_header,
    too_large_decompressed,
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
    directory_of,
    extend,
    has_valid_checksum,
    sizes,
    sparse,
)
from mpwds.storage.tar.streams import Input
from mpwds.warn import warn

_COMMENT: Final = b" comment="


class Place(NamedTuple):
    """Where a member lies in an archive.

    Args:
        name: Its name; ``None`` unless it is a regular file.
        start: Offset of its first header.
        data: Offset of its data.
        size: Bytes of its data.
        stop: Offset behind its data and their padding.
    """

    name: str | None
    start: int
    data: int
    size: int
    stop: int


def walk(source: Input) -> Iterator[Place]:
    """Yields where each member of an archive lies, directories and links included, in order.

    Raises:
        ShardError: The archive is damaged or truncated, holds GNU sparse files, or a global pax header that
            says more than a comment, because members taken out of the archive would lose what it says.
    """
    position = after_zeros = base = 0
    window = b""
    first = -1  # offset of the member's first header, once an extension header is read
    extended = NOTHING
    while True:
        at = position - base
        if at + BLOCK > len(window):
            window, at = source.window(position, BLOCK)
            base = position - at
            if position > source.end:
                raise truncated(source, first if first >= 0 else position, f"it ends at {source.end}")
            if at + BLOCK > len(window):
                break
        front, stored, back = LAYOUT.unpack_from(window, at)
        if not has_valid_checksum(front, stored, back):
            block = window[at : at + BLOCK]
            if first >= 0 or block != ZERO_BLOCK:
                raise no_header(bytes(block), source, 0, position, after_zeros)
            position = after_zeros = position + BLOCK
            continue
        kind = back[0]
        if kind == SPARSE:
            raise sparse(source.url, position)
        size = 0
        if kind not in WITHOUT_DATA:
            size = sizes[front[SIZE]] if extended.size is None or kind in EXTENSIONS else extended.size
        if size < 0:
            raise bad_size(front, source, position)
        data = position + BLOCK
        stop = data + size + (-size & 511)
        if stop > source.end:
            raise data_missing(source, position, size)
        start = position if first < 0 else first
        if kind in EXTENSIONS:
            if size > EXTENSION_LIMIT_BYTES:
                raise extension_too_large(source, position, size, EXTENSION_LIMIT_BYTES)
            window, at = source.window(data, stop - data)
            base = data - at
            body = bytes(window[at : at + size])
            extended = extend(extended, kind, body, source.url, position)
            if kind == GLOBAL:
                _check_global(body, source, position)
            first, position = start, stop
            continue
        name = None
        if kind in REGULAR:
            name = extended.name or _name(front, back)
            if not kind and name.endswith("/"):  # a directory of a v7 archive
                name = None
            if size > source.largest:
                raise too_large_decompressed(source, position, name or "", size)
        first, extended, position = -1, NOTHING, stop
        yield Place(name, start, data, size, stop)
    if first >= 0 or any(window[at:]):
        raise no_header(bytes(window[at:]), source, 0, position, after_zeros)
    if position > after_zeros:
        warn(f"{source.url} ends at offset {position} without the end-of-archive blocks: it may be truncated")


def _name(front: bytes, back: bytes) -> str:
    return (directory_of(back) + front[:NAME_BYTES].partition(b"\0")[0]).decode("utf-8", "surrogateescape")


def _check_global(body: bytes, source: Input, position: int) -> None:
    if body.count(b"\n") != 1 or _COMMENT not in body[:30]:
        raise ShardError(
            f"global pax header at offset {position} of {source.url} holds for all members behind it, also "
            "in the shards that they would go to: write the archive without it (tar xf, then tar cf)"
        )
