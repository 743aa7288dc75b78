"""Reads the members of a tar archive, with every length checked: the hot path of reading shards."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Generator
from contextlib import closing
from typing import BinaryIO

from mpwds.errors import ShardError
from mpwds.storage.streams.base import PerhapsCut
from mpwds.storage.streams.gopen import open_at
from mpwds.storage.tar import headers
from mpwds.storage.tar.compression import compression_of
from mpwds.storage.tar.headers import BLOCK, MemberFinder, begins_archive
from mpwds.storage.tar.input import OpenAt, open_archive
from mpwds.warn import warn

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
        finder = MemberFinder(source, applies_global=True)
        window = b""  # of the archive, from `base` on
        base = position = offset
        need = BLOCK
        while True:
            at = position - base
            if at + need > len(window):
                window, at = source.window(position, need)
                base = position - at
                if position >= source.end:
                    break
            fault, following = None, position
            try:
                following = base + finder.find(window, base, at)
            except ShardError as error:
                fault = error  # raised after the members before it
            is_all_here = following <= base + len(window)  # or all but the data of the last one found
            for name, first, start, size in finder.found:
                chosen = name if choose is None else choose(name)
                if chosen is None:
                    continue
                at = start - base
                if is_all_here or at + size + (-size & 511) <= len(window):
                    yield chosen, first, window[at : at + size]
                    continue
                padding = -size & 511
                if size >= _APART_BYTES:
                    if size > source.largest:
                        raise source.too_large(start - BLOCK, name, size)
                    data = source.data(start, size, padding)
                else:
                    window, at = source.window(start, size + padding)
                    base = start - at
                    data = window[at : at + size]
                if start + size + padding > source.end:
                    raise headers.data_missing(source, start - BLOCK, size)
                yield chosen, first, data
            if fault is not None:
                raise fault
            if following > position:
                position, need = following, BLOCK
            elif source.end - position < BLOCK:  # zeros
                return
            else:
                need *= 2
        if position > source.end:
            raise ShardError(
                f"{source.url} is truncated: it ends at {source.end}, inside a member up to {position}"
            )
        if position > max(offset, finder.after_zeros):
            if not source.detects_truncation:
                raise headers.cut_off(source, position)
            if warn_of_no_end:
                warn(
                    f"{source.url} ends at offset {position} without the end-of-archive blocks: it may be "
                    "truncated"
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
