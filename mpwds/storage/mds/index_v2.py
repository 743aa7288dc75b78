"""The index of an MDS dataset, version 2: ``index.json``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mpwds.errors import ShardError
from mpwds.storage.mds.compression import Compression
from mpwds.storage.mds.encodings import encoding
from mpwds.storage.mds.local_shards import ShardFiles, StoredFile

INDEX_NAME = "index.json"
VERSION = 2
OFFSET_LIMIT = 1 << 32
"""Offsets in a shard have 32 bits, so it is smaller."""

Columns = tuple[tuple[str, str], ...]
"""Names and encodings of a shard's columns."""


@dataclass(frozen=True)
class IndexedShard:
    """What the index says about a shard."""

    files: ShardFiles
    samples: int
    columns: Columns


def parse_index(data: bytes, path: str) -> list[IndexedShard]:
    """The shards that an index lists.

    Args:
        data: The file's content.
        path: The file's name, for errors.

    Raises:
        ShardError: The index is damaged, or of another version or format. The message names the place in it.

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
    """What index and shard say about all shards of a writer."""
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
