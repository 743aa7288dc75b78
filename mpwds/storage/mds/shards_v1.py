"""MDS of version 1: its index, ``index.mds``, and the samples of its shards by number."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpwds.errors import ShardError
from mpwds.storage.mds.fetched_shards import DatasetLocation, FetchedShards
from mpwds.storage.mds.stored_files import Compression, ShardFiles, StoredFile

INDEX_NAME = "index.mds"
MAGIC = 0xDA7AD06E
VERSION = 1

_HEAD = struct.Struct("<3I2q")  # magic, version, shards, samples, bytes
_WIDTHS = (1, 2, 4, 8)
_BYTE = np.dtype("u1")
_INT32 = np.dtype("<i4")
_INT64 = np.dtype("<i8")


@dataclass(frozen=True)
class Index:
    """A parsed index."""

    samples_per_shard: npt.NDArray[np.int64]
    bytes_per_shard: npt.NDArray[np.int64]  # uncompressed
    sample_sizes: npt.NDArray[Any] | int  # bytes of each sample, over all shards; a number if all are alike
    fields: tuple[str, ...]

    def offsets(self, shard: int) -> npt.NDArray[np.int64]:
        """The starts of a shard's samples, and the end of the last one. The samples' sizes must differ."""
        assert not isinstance(self.sample_sizes, int)
        first = int(self.samples_per_shard[:shard].sum())
        sizes = self.sample_sizes[first : first + int(self.samples_per_shard[shard])]
        offsets = np.zeros(len(sizes) + 1, _INT64)
        np.cumsum(sizes, out=offsets[1:])
        return offsets


def parse_index(data: bytes, path: str) -> Index:
    """Parses an index.

    Sizes of samples are read as numbers without sign, which is what composer's writer meant. ``path`` is the
    file's name for errors. Raises ``ShardError`` with the offset if it is damaged, or no index.
    """
    if len(data) < _HEAD.size:
        raise ShardError(f"{path} is truncated: it has {len(data)} bytes, and an index at least {_HEAD.size}")
    magic, version, shards, samples, total = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise ShardError(f"{path} is not an index of MDS version 1: it begins with 0x{magic:08X}")
    if version != VERSION:
        raise ShardError(f"{path} says at offset 4 that it is of version {version}, expected {VERSION}")
    offset = _HEAD.size

    def take(count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        nonlocal offset
        start = offset
        if count < 0 or count * dtype.itemsize > len(data) - start:
            raise ShardError(
                f"{path} is damaged or truncated: {count} entries of {dtype.itemsize} bytes do not fit at "
                f"offset {start} of {len(data)}"
            )
        offset += count * dtype.itemsize
        return np.frombuffer(data, dtype, count, start)

    per_shard, bytes_per_shard = take(shards, _INT64), take(shards, _INT64)
    at = offset
    (width,) = take(1, _INT32).tolist()
    sizes: npt.NDArray[Any] | int
    if width == 0:
        (sizes,) = take(1, _INT64).tolist()
    elif width in _WIDTHS:
        sizes = take(samples, np.dtype(f"<u{width}"))
    else:
        raise ShardError(
            f"{path} says at offset {at} that sizes have {width} bytes, expected 0, 1, 2, 4 or 8"
        )
    (count,) = take(1, _INT32).tolist()
    fields = []
    for size in take(count, _INT32).tolist():
        at = offset
        try:
            name = take(size, _BYTE).tobytes().decode()
        except UnicodeDecodeError as error:
            raise ShardError(f"{path} is damaged: the name at offset {at} is not UTF-8") from error
        if "\0" in name:
            raise ShardError(f"{path} is damaged: the name at offset {at} is {name!r}")
        fields.append(name)
    if offset != len(data):
        raise ShardError(f"{path} should end at byte {offset}, and it has {len(data)}")
    index = Index(per_shard, bytes_per_shard, sizes, tuple(fields))
    _check(index, samples, total, path)
    return index


def _check(index: Index, samples: int, total: int, path: str) -> None:
    """Compares the totals with the shards, and each shard with its samples."""
    per_shard, sizes = index.samples_per_shard.tolist(), index.bytes_per_shard.tolist()
    if min(per_shard, default=0) < 0 or min(sizes, default=0) < 0 or sum(per_shard) != samples:
        raise ShardError(
            f"{path} is damaged: the numbers of samples of its shards do not add up to {samples}"
        )
    if sum(sizes) != total:
        raise ShardError(f"{path} is damaged: the sizes of its shards do not add up to {total} bytes")
    if len(set(index.fields)) < len(index.fields):
        raise ShardError(f"{path} is damaged: a field occurs twice among {list(index.fields)}")
    if isinstance(index.sample_sizes, int):
        sums = [count * index.sample_sizes for count in per_shard]
    else:
        ends = np.cumsum(index.samples_per_shard)
        running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(index.sample_sizes, dtype=np.uint64)])
        sums = (running[ends] - running[ends - index.samples_per_shard]).tolist()
    for shard, (found, expected) in enumerate(zip(sums, sizes, strict=True)):
        if found != expected:
            raise ShardError(
                f"{path} is damaged: samples of shard {shard} have {found} bytes, and the shard {expected}"
            )


def dump_index(
    samples_per_shard: Sequence[int],
    bytes_per_shard: Sequence[int],
    sample_sizes: Sequence[int] | npt.NDArray[np.int64],
    fields: Sequence[str],
) -> bytes:
    """The bytes of an index.

    Sizes that differ have the fewest bytes in which they fit as numbers with a sign, as composer reads them.
    """
    sizes = np.asarray(sample_sizes, _INT64)
    if not len(sizes):
        width, entries = 1, b""
    elif (sizes == sizes[0]).all():
        width, entries = 0, sizes[:1].tobytes()
    else:
        width = next(width for width in _WIDTHS if int(sizes.max()) < 1 << (8 * width - 1))
        entries = sizes.astype(f"<i{width}").tobytes()
    names = [field.encode() for field in fields]
    return b"".join(
        [
            _HEAD.pack(MAGIC, VERSION, len(samples_per_shard), len(sizes), sum(bytes_per_shard)),
            np.asarray(samples_per_shard, _INT64).tobytes(),
            np.asarray(bytes_per_shard, _INT64).tobytes(),
            struct.pack("<i", width),
            entries,
            np.asarray([len(names), *map(len, names)], _INT32).tobytes(),
            *names,
        ]
    )


_INDEX_LIMIT_BYTES = 1 << 32  # a gigabyte of index describes some 500 million samples


class MDS1Shards(FetchedShards):
    """The samples of an MDS dataset of version 1 (composer's), by shard and number. Fields are bytes.

    The arguments, attributes and errors are those of ``MDSShards``, as far as they are here.
    """

    def __init__(
        self,
        local: str | os.PathLike[str] | None = None,
        remote: str | os.PathLike[str] | None = None,
        *,
        in_place: bool = True,
        cache_limit: int | None = None,
        retries: int = 2,
        timeout_s: float = 60.0,
    ) -> None:
        location = DatasetLocation.of(local, remote, None, retries, timeout_s)
        location, name, data = location.opened(INDEX_NAME, INDEX_NAME + ".gz")
        end = name.removeprefix(INDEX_NAME)
        if end:
            try:
                data = Compression.of("gz").decompress(data, _INDEX_LIMIT_BYTES)
            except ValueError as error:
                raise ShardError(f"{location.url(name)} is damaged: {error}") from error
        self._index = parse_index(data, os.path.join(location.local, name))
        files = []
        for number, size in enumerate(self._index.bytes_per_shard.tolist()):
            raw = StoredFile(f"{number:06}.mds", size)
            files.append(ShardFiles(raw, StoredFile(raw.name + end, None), "gz") if end else ShardFiles(raw))
        lengths = self._index.samples_per_shard.tolist()
        super().__init__(location, files, lengths, in_place, cache_limit=cache_limit)
        self.fields = self._index.fields
        self.shard_columns = [tuple((name, "bytes") for name in self.fields)] * len(files)

    def read(self, shard: int, index: int) -> dict[str, bytes]:
        """The fields of a sample, by name. Raises as ``MDSShards.read``."""
        file = self._file_of(shard, index)
        size = self._index.sample_sizes
        if isinstance(size, int):
            start = index * size
        else:
            if not file.tables:
                file.tables[0] = self._index.offsets(shard)
            start, stop = file.tables[0][index : index + 2].tolist()
            size = stop - start
        return self._split(file.read(size, start), file.url, start, index)

    def _split(self, data: bytes, path: str, offset: int, index: int) -> dict[str, bytes]:
        end = 8 * len(self.fields)
        sizes = struct.unpack_from(f"<{len(self.fields)}q", data) if len(data) >= end else (-1,)
        if min(sizes, default=0) < 0 or end + sum(sizes) != len(data):
            raise ShardError(
                f"{path} is damaged at offset {offset}: the sizes of the fields of sample {index} do not add "
                f"up to its {len(data)} bytes"
            )
        sample = {}
        for name, size in zip(self.fields, sizes, strict=True):
            start = end
            end += size
            sample[name] = data[start:end]
        return sample
