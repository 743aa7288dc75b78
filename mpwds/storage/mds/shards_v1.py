"""The samples of MDS shards of version 1, by number."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Any

from mpwds.errors import ShardError
from mpwds.storage.mds.compression import Compression
from mpwds.storage.mds.index_v1 import INDEX_NAME, parse_index
from mpwds.storage.mds.index_v2 import INDEX_NAME as MDS2_INDEX
from mpwds.storage.mds.local_shards import LocalShards, ShardFiles, StoredFile
from mpwds.storage.mds.location import DatasetLocation

_INDEX_LIMIT_BYTES = 1 << 32  # a gigabyte of index describes some 500 million samples


class MDS1Shards:
    """The samples of an MDS dataset of version 1 (composer's), by shard and number. Fields are bytes.

    The arguments, attributes and errors are those of ``MDSShards``, as far as they are here.

    Attributes:
        fields: The fields' names.
        shard_columns, files: As of ``MDSShards``.

    Example:
        >>> import tempfile
        >>> from mpwds import StreamingDatasetWriter
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with StreamingDatasetWriter(folder, ["cls"]) as sink:
        ...         sink.write_sample({"cls": b"7"})
        ...     MDS1Shards(folder).read(0, 0)
        {'cls': b'7'}
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
        location, name, data = _load_index(DatasetLocation.of(local, remote, None, retries, timeout_s))
        self._index = parse_index(data, os.path.join(location.local, name))
        end = name.removeprefix(INDEX_NAME)
        sizes = self._index.bytes_per_shard.tolist()
        if end and not in_place:
            location = location.unpacked_elsewhere()
        self.files = files = [_files(f"{number:06}.mds", size, end) for number, size in enumerate(sizes)]
        self._files = LocalShards(location, files, cache_limit=cache_limit)
        self.urls: Sequence[str] = [os.path.join(location.local, each.raw.name) for each in files]
        self.lengths: Sequence[int] = self._index.samples_per_shard.tolist()
        self.fields = self._index.fields
        self.shard_columns = [tuple((name, "bytes") for name in self.fields)] * len(files)
        self._sizes = struct.Struct(f"<{len(self.fields)}q")

    def read(self, shard: int, index: int) -> dict[str, bytes]:
        """The fields of a sample, by name. Raises as ``MDSShards.read``."""
        if not 0 <= index < self.lengths[shard]:
            raise IndexError(
                f"{self.urls[shard]} has {self.lengths[shard]} samples, there is no sample {index}"
            )
        file = self._files.open(shard)
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
        end = self._sizes.size
        sizes = self._sizes.unpack_from(data) if len(data) >= end else (-1,)
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

    def close(self) -> None:
        """Closes the files that are open; the next ``read`` opens them again."""
        self._files.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sizes": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._sizes = struct.Struct(f"<{len(self.fields)}q")


def _files(name: str, size: int, end: str) -> ShardFiles:
    raw = StoredFile(name, size)
    return ShardFiles(raw, StoredFile(name + end, None), "gz") if end else ShardFiles(raw)


def _load_index(location: DatasetLocation) -> tuple[DatasetLocation, str, bytes]:
    """The location as it was opened, the name of the index, and its uncompressed content."""
    try:
        location, name, data = location.opened(INDEX_NAME, INDEX_NAME + ".gz")
    except FileNotFoundError:
        if os.path.exists(os.path.join(location.local, MDS2_INDEX)):
            raise FileNotFoundError(
                f"{location.local} holds an MDS dataset of version 2: MDSDataset reads it"
            ) from None
        raise
    if name == INDEX_NAME:
        return location, name, data
    try:
        return location, name, Compression.of("gz").decompress(data, _INDEX_LIMIT_BYTES)
    except ValueError as error:
        raise ShardError(f"{location.url(name)} is damaged: {error}") from error
