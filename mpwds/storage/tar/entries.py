"""Reads the members of a tar archive, with every length checked: the hot path of reading shards."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Generator
from contextlib import closing
from typing import BinaryIO
from zlib import adler32

from mpwds.errors import ShardError
from mpwds.storage.streams.base import PerhapsCut
from mpwds.storage.streams.gopen import open_at
from mpwds.storage.tar.compression import compression_of
from mpwds.storage.tar.headers import (
    BLOCK,
    EXTENSIONS,
    GLOBAL,
    LAYOUT,
    NAME_BYTES,
    NOTHING,
    REGULAR,
    SIZE,
    TIME_ALONE,
    ZERO_BLOCK,
    back_sum,
    bad_size,
    begins_archive,
    checksums,
    cut_off,
    data_missing,
    directory_of,
    extend,
    has_valid_checksum,
    no_header,
    size_of,
    sizes,
    too_large_decompressed,
    truncated,
)
from mpwds.storage.tar.input import OpenAt, open_archive

MAX_DECOMPRESSED_BYTES = 512 << 20
"""The most data that a member of a compressed archive may have, by default."""

_APART_BYTES = 32 * 1024  # larger data is read by itself, not as a part of a window


def read_members(
    url: str,
    offset: int = 0,
    open: OpenAt = open_at,
    choose: Callable[[str], str | None] | None = None,
    warn_of_no_end: bool = True,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> Generator[tuple[str, int, bytes], None, None]:
    """Yields the regular files of a tar archive in order; skips directories, links and devices.

    Of each file, it yields the name, the offset of its first header, where reading can start again, and the
    data. Bytes of a name that are not UTF-8 become surrogates (``surrogateescape``).

    Reads v7, ustar, GNU and pax archives, with long names and large sizes, several archives in a row, and all
    that compressed by gzip, bzip2, xz or zstd. Memory is bounded: a length in the archive is compared with
    the bytes that are really there before anything is allocated. The stream is open while the generator is.

    An archive without the zero blocks that should end it is read to its end and then gives a
    ``RuntimeWarning``: the rest of an upload may be missing. It is a ``ShardError`` if nothing else tells the
    archive's length, as with a server that sends none, and commands.

    Args:
        url: A path or URL for ``open``.
        offset: Byte offset at which to start: 0, or that of a file. In a compressed archive it counts
            decompressed bytes, and all bytes before it are decompressed again. A global pax header before it
            is not seen.
        open: Opens ``url`` at a byte offset.
        choose: Takes a file's name, returns the name to yield, or ``None`` to skip the file unread.
        warn_of_no_end: Whether to warn of a missing end.
        max_decompressed_bytes: The most data that a file of a compressed archive may have.

    Raises:
        ShardError: The archive is damaged or truncated, holds GNU sparse files, or is followed by other
            bytes. The message gives the file and the offset. Files before the fault have been yielded.

    Source:
        POSIX.1-2001 ``pax`` (ustar and pax interchange formats); the GNU tar manual, "Basic Tar Format".
    """
    if offset < 0:
        raise ValueError(f"offset in a shard must not be negative, got {offset}")
    with closing(open_archive(url, offset, open, max_decompressed_bytes)) as source:
        shown = source.url
        unpack = LAYOUT.unpack_from
        window = b""  # of the archive, from `base` on
        base = offset
        at = 0  # of the next header, in the window
        available = 0  # bytes in the window
        first = -1  # offset of the member's first header, once an extension header is read
        after_zeros = offset  # where the zero blocks end that were read last
        for_all = extended = NOTHING
        known_back = b""  # third part of a header that was found to be a regular file's, ...
        known_sum = 0  # ... what it adds to the checksum, ...
        directory = b""  # ... the part of the name in it, ...
        by_name = False  # ... and whether the name alone tells directories, as in v7 archives
        pax_back, pax_sum = b"", 0  # the same of an extension header
        while True:
            if at + BLOCK > available:
                position = base + at
                window, at = source.window(position, BLOCK)
                base = position - at
                available = len(window)
                if position >= source.end:
                    break
                if at + BLOCK > available:
                    if first >= 0 or any(window[at:]):
                        raise no_header(window[at:], source, offset, position, after_zeros)
                    return
            front, stored, back = unpack(window, at)

            if back != known_back or checksums[stored] != (adler32(front) & 0xFFFF) + known_sum:
                seen = back == pax_back and checksums[stored] == (adler32(front) & 0xFFFF) + pax_sum
                if not seen and not has_valid_checksum(front, stored, back):
                    header = window[at : at + BLOCK]
                    if first >= 0 or header != ZERO_BLOCK:
                        raise no_header(header, source, offset, base + at, after_zeros)
                    zeros = available - at - len(window[at:].lstrip(b"\0"))
                    at += zeros // BLOCK * BLOCK
                    after_zeros = base + at
                    continue
                kind = back[0]
                if seen or kind in EXTENSIONS:
                    position = base + at
                    size = sizes[front[SIZE]]
                    start = at + BLOCK
                    following = start + size + (-size & 511)
                    if size < 0 or following > available:
                        size_of(front, kind, extended, source, position)  # raises if it is wrong
                        window, start = source.window(position + BLOCK, following - start)
                        base = position + BLOCK - start
                        available = len(window)
                        following = start + size + (-size & 511)
                        if following > available:
                            raise data_missing(source, position, size)
                    at = following
                    if not (
                        size < 100
                        and window.startswith(TIME_ALONE[size], start)
                        and window.find(b"\n", start, start + size) == start + size - 1
                    ):
                        body = window[start : start + size]
                        extended = extend(extended, kind, body, shown, position)
                        if kind == GLOBAL:
                            for_all = extend(for_all, kind, body, shown, position)
                    if kind != GLOBAL:
                        if first < 0:
                            first = position
                        if not seen:
                            pax_back, pax_sum = back, back_sum(back)
                    continue
                if kind not in REGULAR:
                    size = size_of(front, kind, extended, source, base + at)
                    at += BLOCK + size + (-size & 511)
                    first, extended = -1, for_all
                    continue
                known_back, known_sum = back, back_sum(back)
                directory, by_name = directory_of(back), not kind

            size = sizes[front[SIZE]]
            name = None
            if extended is not NOTHING:
                name = extended.name
                if extended.size is not None:
                    size = extended.size
                extended = for_all
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
            if size < 0:
                raise bad_size(front, source, base + at)
            start = at + BLOCK
            stop = start + size
            following = stop + (-size & 511)
            member_offset = base + at if first < 0 else first
            first = -1
            chosen: str | None = name
            if by_name and name.endswith("/"):
                chosen = None
            elif choose is not None:
                chosen = choose(name)
            if chosen is None:
                if base + following > source.end:
                    raise data_missing(source, base + at, size)
                at = following
                continue

            if following <= available:
                data = window[start:stop]
            else:
                position, end = base + at, base + following
                if end <= source.end:
                    if size >= _APART_BYTES:
                        if size > source.largest:
                            raise too_large_decompressed(source, position, name, size, source.largest)
                        data = source.data(base + start, size, following - stop)
                        window, available = b"", 0
                    else:
                        window, at = source.window(position, end - position)
                        base = position - at
                        available = len(window)
                        following = end - base
                        data = window[at + BLOCK : at + BLOCK + size]
                if end > source.end:
                    raise data_missing(source, position, size)
            at = following
            yield chosen, member_offset, data

        if position > source.end:
            raise ShardError(
                f"{shown} is truncated: it ends at {source.end}, inside a member that reaches to {position}"
            )
        if first >= 0:
            raise truncated(source, first, "it ends after an extension header, before its member")
        if position > after_zeros and not source.detects_truncation:
            raise cut_off(source, position)
        if position > after_zeros and warn_of_no_end:
            warnings.warn(
                f"{shown} ends at offset {position} without the end-of-archive blocks: it may be truncated",
                RuntimeWarning,
                stacklevel=3,
            )


def check_tar_format(fname: str | os.PathLike[str]) -> bool:
    """True if a file begins like a tar archive or a compressed file (gzip, zstd, bzip2, xz).

    Source:
        ``webdataset.cache.check_tar_format``.
    """
    with open(fname, "rb") as file:
        block = file.read(BLOCK)
    return compression_of(block) is not None or (len(block) == BLOCK and begins_archive(block))


def is_whole_shard(fname: str | os.PathLike[str], detects_truncation: bool = True) -> bool:
    """True if a file is a tar archive, compressed or not, that can be read to its end.

    Reads all headers, and decompresses a compressed archive, to find a download that broke off without an
    error (``pipe:curl ... || true``). An archive without an end mark counts as whole, unless the stream that
    it was copied from does not detect truncation. So does one that cannot be decompressed because a package
    is missing.
    """
    if not check_tar_format(fname):
        return False

    def opened(path: str, offset: int) -> BinaryIO:
        return io.BufferedReader((io.FileIO if detects_truncation else PerhapsCut)(path))

    try:
        for _ in read_members(os.fspath(fname), 0, opened, lambda name: None, warn_of_no_end=False):
            pass
    except ShardError:
        return False
    except ImportError:
        pass
    return True
