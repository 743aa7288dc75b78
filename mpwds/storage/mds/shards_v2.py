"""MDS of version 2: its index, ``index.json``, and the samples of its shards by number."""

from __future__ import annotations

import json
import os
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mpwds.errors import DecodeError, ShardError
from mpwds.storage.mds.encodings import ENCODINGS, Encoding, encoding
from mpwds.storage.mds.fetched_shards import DatasetLocation, FetchedShards, LocalFile
from mpwds.storage.mds.stored_files import Compression, ShardFiles, StoredFile

INDEX_NAME = "index.json"
VERSION = 2
OFFSET_LIMIT = 1 << 32
"""Offsets in a shard have 32 bits, so it is smaller."""

Columns = tuple[tuple[str, str], ...]
"""Names and encodings of a shard's columns."""


@dataclass(frozen=True)
class IndexedShard:
    """A shard as the index describes it."""

    files: ShardFiles
    samples: int
    columns: Columns


def parse_index(data: bytes, path: str) -> list[IndexedShard]:
    """The shards that an index lists; ``path`` is its name for errors.

    Raises ``ShardError`` with the place if it is damaged, or of another version or format.

    Source:
        ``streaming.base.format``.
    """
    try:
        index = json.loads(data)
    except ValueError as error:
        raise ShardError(f"{path} is damaged, it is not JSON: {error}") from error
    shards: list[IndexedShard] = []
    try:
        place = "$"
        _check_version(index)
        for number, entry in enumerate(_of_type(index, "shards", list)):
            place = f"$.shards[{number}]"
            shards.append(_parse_shard(entry))
    except (TypeError, ValueError) as error:
        raise ShardError(f"{path} is damaged at {place}: {error}") from error
    return shards


def _check_version(entry: object) -> None:
    version = _of_type(entry, "version", int)
    if version != VERSION:
        raise ValueError(f"version {version} of MDS is unknown, expected {VERSION}")


def _parse_shard(entry: Any) -> IndexedShard:
    _check_version(entry)
    kind = _of_type(entry, "format", str)
    if kind != "mds":
        raise ValueError(f"its shards have the format {kind!r}, and only 'mds' can be read")
    raw = _parse_file(entry, "raw_data")
    samples = _of_type(entry, "samples", int)
    if samples < 0 or not 8 + 4 * samples <= (raw.size or 0) < OFFSET_LIMIT:  # their offsets come first
        raise ValueError(f"a shard cannot have {samples} samples and {raw.size} bytes")
    packed = _parse_file(entry, "zip_data") if entry.get("zip_data") is not None else None
    compression = entry.get("compression") or ""
    if (packed is None) != (compression == ""):
        raise ValueError("compression and zip_data do not belong together")
    if compression:
        Compression.of(compression)
    return IndexedShard(ShardFiles(raw, packed, compression), samples, _parse_columns(entry))


def _parse_columns(entry: Any) -> Columns:
    names = _of_type(entry, "column_names", list)
    encodings = _of_type(entry, "column_encodings", list)
    sizes = _of_type(entry, "column_sizes", list)
    if not len(names) == len(encodings) == len(sizes) or len(set(map(str, names))) < len(names):
        raise ValueError("column_names, column_encodings and column_sizes do not belong together")
    for name, each, size in zip(names, encodings, sizes, strict=True):
        if not isinstance(name, str) or not isinstance(each, str):
            raise TypeError(f"the column {name!r} has the encoding {each!r}, expected two strings")
        expected = encoding(each, allow_pickle=True).size  # whether to allow it is asked elsewhere
        if size != expected:
            raise ValueError(f"values of the column {name!r} ({each}) have {expected} bytes, not {size}")
    return tuple(zip(names, encodings, strict=True))


def _parse_file(entry: Any, key: str) -> StoredFile:
    described = _of_type(entry, key, dict)
    name = _of_type(described, "basename", str)
    if not name or os.path.isabs(name) or ".." in name.split("/") or "\0" in name:
        raise ValueError(f"{key} names the file {name!r}, which is not one of the dataset's folder")
    size = _of_type(described, "bytes", int)
    if size < 0:
        raise ValueError(f"{key} has {size} bytes")
    hashes = _of_type(described, "hashes", dict)
    return StoredFile(name, size, {str(algorithm): str(digest) for algorithm, digest in hashes.items()})


def _of_type(entry: object, key: str, kind: type) -> Any:
    if not isinstance(entry, dict) or key not in entry:
        raise ValueError(f"it has no {key!r}")
    value = entry[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{key!r} is {value!r}, expected {kind.__name__}")
    return value


def dump_index(shards: Sequence[Mapping[str, Any]]) -> bytes:
    """The index of shards, each described as by ``describe``."""
    return json.dumps({"version": VERSION, "shards": shards}, sort_keys=True).encode()


def describe_columns(
    columns: Columns, compression: str | None, hashes: Sequence[str], size_limit: int | None
) -> dict[str, Any]:
    """The part of an index entry, and of a shard's head, that is the same for all shards of a writer."""
    return {
        "version": VERSION,
        "format": "mds",
        "compression": compression,
        "hashes": list(hashes),
        "size_limit": size_limit,
        "column_names": [name for name, _ in columns],
        "column_encodings": [each for _, each in columns],
        "column_sizes": [encoding(each, allow_pickle=True).size for _, each in columns],
    }


_AT_ONCE_BYTES = 32 * 1024  # a larger sample is read field by field, so that its data is copied once
_PAGE = 1024  # samples whose offsets are read at a time


class MDSShards(FetchedShards):
    """The samples of an MDS dataset of version 2, by shard and number.

    The arguments and errors are those of ``mpwds.MDSDataset``, which also says what is fetched; ``in_place``
    and ``datasets`` are those of ``FetchedShards``. Without ``decode``, fields are bytes as they are stored.

    Attributes:
        columns: The first shard's columns: names, and their encodings.
        shard_columns: Those of each shard, as pairs.
    """

    def __init__(
        self,
        local: str | os.PathLike[str] | None = None,
        remote: str | os.PathLike[str] | None = None,
        split: str | None = None,
        *,
        decode: bool = True,
        in_place: bool = True,
        allow_pickle: bool = False,
        validate_hash: str | None = None,
        cache_limit: int | None = None,
        retries: int = 2,
        timeout_s: float = 60.0,
        datasets: int = 1,
    ) -> None:
        location, _, data = DatasetLocation.of(local, remote, split, retries, timeout_s).opened(INDEX_NAME)
        path = os.path.join(location.local, INDEX_NAME)
        shards = parse_index(data, path)
        files, lengths = [shard.files for shard in shards], [shard.samples for shard in shards]
        super().__init__(location, files, lengths, in_place, validate_hash, cache_limit, datasets)
        self.columns: Mapping[str, str] = dict(shards[0].columns) if shards else {}
        self._decode = decode
        self._allow_pickle = allow_pickle
        self.shard_columns = [shard.columns for shard in shards]
        self._make_decoders(path)

    def _make_decoders(self, path: str) -> None:
        made: dict[Columns, ColumnDecoder] = {}
        for columns in self.shard_columns:
            if columns not in made:
                try:
                    encodings = {
                        name: encoding(each, self._allow_pickle or not self._decode) for name, each in columns
                    }
                except ValueError as error:
                    raise ValueError(f"{path}: a column cannot be decoded: {error}") from error
                made[columns] = ColumnDecoder(encodings, self._decode)
        self._decoders = [made[columns] for columns in self.shard_columns]

    def read(self, shard: int, index: int) -> dict[str, Any]:
        """The fields of a sample, by name. Errors of its data name file and offset.

        Raises ``ShardError`` if the shard is damaged, ``DecodeError`` if a field cannot be decoded,
        ``StreamError`` if the shard cannot be fetched, ``IndexError`` if there is no such sample.
        """
        file, count = self._file_of(shard, index), self.lengths[shard]
        page, place = divmod(index, _PAGE)
        offsets = file.tables.get(page) or _load_offsets(file, count, page)
        start, end = offsets[place], offsets[place + 1]
        if not 8 + 4 * count <= start <= end <= file.end:
            raise ShardError(
                f"{file.url} is damaged at offset {4 + 4 * index}: sample {index} cannot lie at {start} to "
                f"{end}"
            )
        return self._decoders[shard].decode(file, start, end, index)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["_decoders"]  # functions
        names = {each for columns in set(self.shard_columns) for _, each in columns} & ENCODINGS.keys()
        state["_own"] = {name: ENCODINGS[name] for name in names if isinstance(ENCODINGS[name], type)}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, made in state.pop("_own").items():  # a worker may not have them yet
            ENCODINGS[name] = made
        self.__dict__.update(state)
        self._make_decoders("")


def _load_offsets(file: LocalFile, count: int, page: int) -> array[int]:
    """Reads where the samples of a page begin, and where its last one ends."""
    if not file.tables:
        head = file.read(4, 0)
        found = int.from_bytes(head, "little")
        if found != count:
            raise ShardError(
                f"{file.url} is damaged at offset 0: it says it has {found} samples, and the index {count}"
            )
    first = page * _PAGE
    data = file.read(size := 4 * (min(_PAGE, count - first) + 1), 4 + 4 * first)
    if len(data) < size:
        raise ShardError(f"{file.url} is damaged: it ends in the table of its samples' offsets")
    offsets = array("I", data)
    file.tables[page] = offsets
    return offsets


class ColumnDecoder:
    """Makes the fields of samples' bytes: sizes of the fields that vary, then all fields."""

    def __init__(self, columns: Mapping[str, Encoding], decode: bool = True) -> None:
        self._columns = [
            (name, each.size, each.decode if decode and each.name != "bytes" else None)
            for name, each in columns.items()
        ]
        varying = [each for each in columns.values() if each.size is None]
        self._sizes = struct.Struct(f"<{len(varying)}I")
        self._fixed = self._sizes.size + sum(each.size or 0 for each in columns.values())

    def decode(self, file: LocalFile, start: int, end: int, index: int) -> dict[str, Any]:
        """The fields of sample ``index``, which lies from ``start`` to ``end`` in the file."""
        is_large = end - start > _AT_ONCE_BYTES
        data = file.read(self._sizes.size if is_large else end - start, start)
        sizes = self._sizes.unpack_from(data) if len(data) >= self._sizes.size else ()
        needed = self._fixed + sum(sizes)
        if needed != end - start or len(data) < (self._sizes.size if is_large else needed):
            raise ShardError(
                f"{file.url} is damaged at offset {start}: the fields of sample {index} need {needed} bytes, "
                f"and it has {end - start if is_large else len(data)}"
            )
        varying = iter(sizes)
        stop = self._sizes.size
        sample: dict[str, Any] = {}
        name = ""
        try:
            for name, size, decode in self._columns:
                begin = stop
                stop += next(varying) if size is None else size
                field = file.read(stop - begin, start + begin) if is_large else data[begin:stop]
                if len(field) < stop - begin:
                    raise ValueError("the shard became shorter while it was read")
                sample[name] = field if decode is None else decode(field)
        except ImportError:
            raise
        except Exception as error:  # decoders raise all kinds for damaged data
            raise DecodeError(
                f"the field {name!r} of sample {index} of {file.url}, at offset {start + begin}, cannot be "
                f"decoded: {type(error).__name__}: {error}",
                key=str(index),
                url=file.url,
                field=name,
            ) from error
        return sample
