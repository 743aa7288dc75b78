"""Where the samples of a tar shard begin: found once, and kept in a file beside the shard.

The file ``.mpwds/NAME.offsets`` beside the shard ``NAME``, all numbers little-endian::

    8 bytes                 "mpwdsof1"
    int64                   size of the shard in bytes
    int64                   its version: time of modification in ns
    uint32[samples + 1]     offset of each sample's first header, in blocks of 512 bytes; then the end

A file whose size or version is not that of the shard is made anew.
"""

from __future__ import annotations

import base64
import contextlib
import os
import struct
import sys
import zlib
from array import array
from itertools import accumulate, pairwise
from typing import Protocol

from mpwds.errors import ShardError
from mpwds.storage.caches.locks import lock, release
from mpwds.storage.tar.header import BLOCK, begins_archive
from mpwds.storage.tar.headers import SeekableArchive, find_all_members
from mpwds.storage.tar.names import split_name
from mpwds.storage.tar.streams import compression_of

_HEADER = struct.Struct("<8sqq")
_MAGIC = b"mpwdsof1"
_PATIENCE_S = 60.0


class Shard(SeekableArchive, Protocol):
    """An open shard, as :class:`mpwds.storage.indexed.mapped_shard.MappedShard`, or its remote kind."""

    @property
    def version(self) -> int: ...


def find_offsets(shard: Shard) -> array[int]:
    """Reads a shard's headers, and no data where it is large, to find its samples.

    Raises:
        ShardError: The shard is damaged, truncated or compressed.
    """
    start = bytes(shard.read(BLOCK, 0))
    if not begins_archive(start):
        compression = compression_of(start)
        if compression is not None:
            raise ShardError(
                f"{shard.url} is compressed ({compression.name}), so its samples cannot be read by number: "
                "decompress it, or read it in order with mpwds.WebDataset"
            )
    offsets = array("I")
    last_key = ""
    end = 0
    for members in find_all_members(shard):
        for name, first, start_of_data, data_size in members:
            key, _ = split_name(name)
            if key and key != last_key:
                offsets.append(first // BLOCK)
                last_key = key
            if key:
                end = start_of_data + data_size + (-data_size & 511)
    offsets.append(end // BLOCK)
    return offsets


def load_or_find(shard: Shard, paths: list[str]) -> array[int]:
    """A shard's offsets, from the first of ``paths`` that has them; else found, and kept at the first.

    Other processes wait meanwhile. If no path can be written, they are only returned. Raises as
    :func:`find_offsets`.
    """
    for path in paths:
        if (offsets := _load(shard, path)) is not None:
            return offsets
    for path in paths:
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return _load_or_make(shard, path)
        except OSError:  # this folder cannot be written, or its file system has no locks
            continue
    return find_offsets(shard)


def _load_or_make(shard: Shard, path: str) -> array[int]:
    guard = path + ".lock"
    while (claim := lock(guard, create=True, timeout_s=_PATIENCE_S)) is None:
        if (offsets := _load(shard, path)) is not None:
            return offsets
    try:
        offsets = _load(shard, path)
        if offsets is None:
            offsets = find_offsets(shard)
            _store(shard, offsets, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(guard)
        release(claim)
    return offsets


def _load(shard: Shard, path: str) -> array[int] | None:
    """The offsets in a file; ``None`` if it is missing, cannot be read, or is not of this shard."""
    try:
        with open(path, "rb", buffering=0) as file:
            data = file.readall()
    except OSError:
        return None
    if data[: _HEADER.size] != _HEADER.pack(_MAGIC, shard.end, shard.version):
        return None
    return _checked(data[_HEADER.size :], shard)


def _store(shard: Shard, offsets: array[int], path: str) -> None:
    new = path + ".new"  # the lock is held
    with open(new, "wb") as file:
        file.write(_HEADER.pack(_MAGIC, shard.end, shard.version) + _little_endian(offsets).tobytes())
    os.replace(new, path)


def _checked(data: bytes, shard: Shard) -> array[int] | None:
    """Offsets from bytes; ``None`` if they cannot be those of the shard."""
    if not data or len(data) % 4:
        return None
    offsets = _little_endian(array("I", data))
    is_whole = len(offsets) == 1 or offsets[-1] > offsets[-2]  # zeros follow after a power failure
    return offsets if is_whole and offsets[-1] * BLOCK <= shard.end else None


def _little_endian(offsets: array[int]) -> array[int]:
    if sys.byteorder == "big":
        offsets = offsets[:]
        offsets.byteswap()
    return offsets


def to_text(offsets: array[int], size: int) -> str:
    """Offsets as a description carries them, for a shard of ``size`` bytes.

    Base64 of zlib of the size (int64) and the differences between offsets (uint32), all little-endian.
    """
    steps = array("I", [offsets[0], *(after - before for before, after in pairwise(offsets))])
    data = struct.pack("<q", size) + _little_endian(steps).tobytes()
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")


def from_text(text: str, shard: Shard) -> array[int] | None:
    """The offsets of :func:`to_text`; ``None`` if they are those of a shard of another size.

    Raises:
        ShardError: The text is none of offsets.
    """
    try:
        data = zlib.decompress(base64.b64decode(text, validate=True))
        (size,) = struct.unpack_from("<q", data)
        offsets = array("I", accumulate(_little_endian(array("I", data[8:]))))
    except (TypeError, ValueError, OverflowError, struct.error, zlib.error) as error:
        raise ShardError(
            f"the description of {shard.url} carries offsets that cannot be read ({error}): leave them out"
        ) from None
    return offsets if size == shard.end and offsets else None
