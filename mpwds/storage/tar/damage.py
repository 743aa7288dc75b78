"""The errors for archives that are damaged, truncated, or hold something that is not read."""

from __future__ import annotations

import sys
from typing import Protocol

from mpwds.errors import ShardError
from mpwds.storage.tar.header import BLOCK, SIZE, ZERO_BLOCK


class Archive(Protocol):
    """What errors say of an archive: its name, and where it ends (``sys.maxsize`` if unknown)."""

    @property
    def url(self) -> str: ...
    @property
    def end(self) -> int: ...


class Limited(Archive, Protocol):
    """An archive whose members may have ``largest`` bytes."""

    @property
    def largest(self) -> int: ...


def no_header(block: bytes, source: Archive, offset: int, position: int, after_zeros: int) -> ShardError:
    """The error for a block, perhaps cut off, that is not a header; zero blocks ended at ``after_zeros``."""
    if offset < after_zeros == position:
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
        "nothing else tells its length (a server without Content-Length, or a command). If no member "
        "is missing, append the blocks to the shard: head -c 1024 /dev/zero >> FILE"
    )


def nothing_there(source: Archive, offset: int) -> ShardError:
    length = "" if 0 < offset == source.end else f" has {source.end} bytes,"
    return ShardError(f"{source.url}{length} nothing can be read at offset {offset}: it is truncated")


def bad_size(front: bytes, source: Archive, position: int) -> ShardError:
    return ShardError(
        f"tar header at offset {position} of {source.url} has size {front[SIZE]!r}, expected an octal "
        "number: the shard is damaged"
    )


def too_large_decompressed(source: Limited, position: int, name: str, size: int) -> ShardError:
    return ShardError(
        f"member {name[:200]} at offset {position} of the compressed shard {source.url} decompresses to "
        f"{size} bytes, more than the limit of {source.largest}; if you trust the shard's author, raise it: "
        "WebDataset(..., max_decompressed_bytes=...)"
    )


def extension_too_large(source: Archive, position: int, size: int, limit: int) -> ShardError:
    return ShardError(
        f"extension header at offset {position} of {source.url} says it has {size} bytes, more than "
        f"{limit}: the shard is damaged"
    )
