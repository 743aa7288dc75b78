"""The offsets of a tar shard's samples: found once, and kept in a file beside the shard.

The file ``.mpwds/NAME.offsets`` beside the shard ``NAME``, all numbers little-endian::

    8 bytes     "mpwdsof5"
    uint32      CRC-32 of the rest
    rest        MessagePack of a dict:
        size        size of the shard in bytes
        version     its version, a list: see MappedShard and RemoteShard
        suffixes    list of str, as in Offsets
        starts      as in Offsets, packed
        rows        as in Offsets, packed

Packed are tables of uint32: their columns of differences, one after the other, compressed with zlib.

A file that is damaged, or is of another shard, is made again: by size, by version, or by the headers of the
first and the last sample.
"""

from __future__ import annotations

import base64
import contextlib
import math
import os
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol, TypeAlias

import msgpack
import numpy as np

from mpwds.errors import ShardError
from mpwds.storage.tar import headers
from mpwds.storage.tar.compression import compression_of
from mpwds.storage.tar.headers import BLOCK, begins_archive
from mpwds.storage.tar.names import group
from mpwds.warn import warn

_HEADER = struct.Struct("<8sI")
_MAGIC = b"mpwdsof5"


_Window: TypeAlias = "tuple[bytes | memoryview, int, list[headers.Found]]"
"""A part of an archive, its offset, and the files whose headers are in it."""


class OpenShard(headers.SeekableArchive, Protocol):
    """An open shard: ``MappedShard`` or ``RemoteShard`` of :mod:`mpwds.storage.indexed.tar_shards`."""

    is_remote: bool
    """True if each ``read`` is a request."""

    version: tuple[int | str, ...]


class Offsets(NamedTuple):
    """The places of a shard's samples, in blocks of 512 bytes.

    ``rows`` has for each sample a ``row`` of uint32: the bytes of its key, then where the data of each member
    is, and its bytes. So all of it is in one line of memory.
    """

    starts: array[int]  # where the first header of each sample is; then the end
    suffixes: Sequence[str] = ()  # ".jpg", if all samples have the same, in the same order; else headers tell
    rows: bytes = b""

    @property
    def row(self) -> struct.Struct:
        return struct.Struct(f"<{1 + 2 * len(self.suffixes)}I")


def find_offsets(shard: OpenShard) -> Offsets:
    """The places of a shard's samples, by its headers; ``ShardError`` if it is damaged or compressed."""
    start = bytes(shard.read(BLOCK, 0))
    if not begins_archive(start):
        compression = compression_of(start)
        if compression is not None:
            raise ShardError(
                f"{shard.url} is compressed ({compression.name}), so its samples cannot be read by number: "
                "decompress it, or read it in order with mpwds.WebDataset"
            )
    offsets = _offsets_of(headers.find_all_members(shard))
    if offsets.starts[-1] * BLOCK == shard.end:
        warn(f"{shard.url} {headers.NO_END}")
    return offsets


def _offsets_of(windows: Iterable[_Window]) -> Offsets:
    """The offsets of the samples whose headers are in windows of an archive."""
    starts, rows = array("I"), array("I")
    expected: list[str] = []
    is_regular, end = True, 0
    for key, members in group(_located(windows)):
        files = [file for extension, file in members if extension is not None]
        if not files:  # an archive without samples
            break
        starts.append(files[0][1] // BLOCK)
        length = len(key)
        suffixes = []
        row = [length if key.isascii() else len(key.encode("utf-8", "replace"))]
        for name, _, begin, size, is_plain in files:
            suffixes.append(name[length:])
            row += begin // BLOCK, size
            is_regular &= is_plain
        end = begin + size + (-size & 511)
        if not expected:
            expected = suffixes
            is_regular &= len(set(suffixes)) == len(suffixes)
        is_regular &= suffixes == expected
        if is_regular:
            rows.extend(row)
    starts.append(end // BLOCK)
    return Offsets(starts, expected, rows.tobytes()) if is_regular else Offsets(starts)


def _located(windows: Iterable[_Window]) -> Iterator[tuple[str, tuple[str, int, int, int, bool]]]:
    """Yields the name of each file, and: name, first header, data, size, and whether a row can hold it."""
    for window, position, members in windows:
        for name, first, begin, size in members:
            header = begin - BLOCK - position
            field = bytes(window[header : header + headers.NAME_BYTES])
            # Not if it is not UTF-8: the field may have "?" for the bytes that the pax header has.
            is_short = field.startswith(name.encode("utf-8", "surrogatepass") + b"\0")
            yield name, (name, first, begin, size, is_short and size < 1 << 32)


def load_or_find(shard: OpenShard, paths: list[str]) -> tuple[Offsets, bool]:
    """A shard's offsets, from the first of ``paths`` that has them; else found, and kept at the first.

    Other processes wait meanwhile. If no path can be written, or the shard has no version, they are not kept;
    the second item tells. Raises as :func:`find_offsets`.
    """
    if not shard.version:
        return find_offsets(shard), False
    for path in paths:
        if (offsets := _load(shard, path)) is not None:
            return offsets, True
    from mpwds.storage.caches.locks import lock, release

    found: Offsets | None = None
    for path in paths:
        guard, claim = path + ".lock", None
        with contextlib.ExitStack() as stack:
            try:
                while claim is None:  # at first, and where the process that had it has removed it
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    claim = lock(guard, create=True, timeout_s=math.inf)
            except OSError:  # this folder cannot be written, or its file system has no locks
                continue
            stack.callback(release, claim)
            stack.callback(_unlink, guard)
            if (offsets := _load(shard, path)) is not None:  # another process has written them meanwhile
                return offsets, True
            found = found or find_offsets(shard)
            with contextlib.suppress(OSError):  # the disk may be full
                _store(shard, found, path)
                return found, True
    return found or find_offsets(shard), False


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _load(shard: OpenShard, path: str) -> Offsets | None:
    """The offsets in a file; ``None`` if it is missing, damaged, cannot be read, or is not of this shard."""
    try:
        with open(path, "rb", buffering=0) as file:
            data = file.readall()
    except OSError:
        return None
    rest = data[_HEADER.size :]
    if data[: _HEADER.size] != _HEADER.pack(_MAGIC, zlib.crc32(rest)):
        return None
    known = msgpack.unpackb(rest)
    if (known["size"], known["version"]) != (shard.end, list(shard.version)):
        return None
    most, suffixes = shard.end // BLOCK + 1, known["suffixes"]
    starts = array("I", _unpacked(known["starts"], 1, most))
    rows = _unpacked(known["rows"], 1 + 2 * len(suffixes), most) if suffixes else b""
    offsets = Offsets(starts, suffixes, rows)
    return offsets if shard.is_remote or _agree(offsets, shard) else None


def _agree(offsets: Offsets, shard: OpenShard) -> bool:
    """True if the first and the last sample are where ``rows`` say. Without rows, headers are read anyway."""
    starts, width = offsets.starts, offsets.row.size
    for index in {0, len(starts) - 2} if offsets.suffixes else ():
        start, stop = starts[index] * BLOCK, starts[index + 1] * BLOCK
        window = shard.read(stop - start, start)
        try:
            found = _offsets_of([(window, start, headers.find_members(window, start, shard))])
        except ShardError:
            return False
        row = offsets.rows[index * width : (index + 1) * width]
        if (found.starts[0], found.suffixes, found.rows) != (starts[index], offsets.suffixes, row):
            return False
    return True


def _store(shard: OpenShard, offsets: Offsets, path: str) -> None:
    from mpwds.storage.writing.destinations import PendingFile, write_whole

    starts = _differences(offsets.starts.tobytes(), 1)
    rows = _differences(offsets.rows, 1 + 2 * len(offsets.suffixes))
    known = {"starts": zlib.compress(starts, 1), "suffixes": offsets.suffixes, "rows": zlib.compress(rows, 1)}
    rest = msgpack.packb({"size": shard.end, "version": shard.version, **known})
    write_whole(PendingFile(path, sync=False), _HEADER.pack(_MAGIC, zlib.crc32(rest)), rest)


def _differences(table: bytes, width: int) -> bytes:
    rows = np.frombuffer(table, "<u4").reshape(-1, width)
    differences: bytes = np.diff(rows, axis=0, prepend=np.zeros((1, width), "<u4")).T.tobytes()
    return differences


def _unpacked(data: bytes, width: int, most_rows: int) -> bytes:
    columns = np.frombuffer(zlib.decompressobj().decompress(data, 4 * width * most_rows), "<u4")
    table: bytes = columns.reshape(width, -1).cumsum(axis=1, dtype="<u4").T.tobytes()
    return table


def to_text(offsets: Offsets, size: int) -> str:
    """The starts of samples as text for a description, of a shard of ``size`` bytes.

    Base64 of zlib of the size (int64) and the differences between starts (uint32), all little-endian.
    """
    data = struct.pack("<q", size) + _differences(offsets.starts.tobytes(), 1)
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")


def from_text(text: str, shard: OpenShard) -> Offsets | None:
    """The offsets of :func:`to_text`; ``None`` if they are those of a shard of another size.

    Raises ``ShardError`` if the text is none of offsets.
    """
    try:
        data = zlib.decompress(base64.b64decode(text))
        (size,) = struct.unpack_from("<q", data)
        starts = array("I", accumulate(array("I", data[8:])))
    except (TypeError, ValueError, OverflowError, struct.error, zlib.error) as error:
        raise ShardError(
            f"the description of {shard.url} carries offsets that cannot be read ({error}): leave them out"
        ) from None
    return Offsets(starts) if size == shard.end and starts else None
