"""Writes MDS datasets of version 2."""

from __future__ import annotations

import json
import os
import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mpwds.storage.mds.encodings import encoding
from mpwds.storage.mds.output import Output
from mpwds.storage.mds.shards_v2 import INDEX_NAME, OFFSET_LIMIT, describe_columns, dump_index
from mpwds.storage.mds.stored_files import Compression, digest, parse_binary_size
from mpwds.storage.streams.resuming import ClosesOrDiscards

_BYTES_A_SAMPLE = 4  # in the shard's table


class MDSWriter(ClosesOrDiscards):
    """Writes an MDS dataset of version 2: shards and an index, for ``MDSDataset`` and mosaicml-streaming.

    Files are the same, byte for byte, as those of mosaicml-streaming; those that are compressed are the same
    once they are uncompressed. Each file appears when it is complete, the index after all shards. An
    exception inside ``with`` leaves the shards that are complete, without an index.

    Args:
        columns: The name and encoding of each column: ``{"image": "jpeg", "cls": "int"}``. All encodings:
            ``mpwds.storage.mds.encodings.encoding``.
        out: The dataset's folder or URL; or folder and URL, for ``keep_local``.
        keep_local: Keep a dataset that goes to a URL in the folder, too.
        compression: ``"br"``, ``"bz2"``, ``"gz"``, ``"snappy"`` or ``"zstd"``, with a level if you like:
            ``"zstd:7"``.
        hashes: Names of hashes that the index lists, in alphabetical order: ``["sha1", "xxh64"]``.
        size_limit: The most bytes in a shard, uncompressed; also ``"64mb"``, of 1024 kB each. ``None`` for
            one shard. A sample that is larger has a shard of its own.
        progress_bar: Has no effect; programs for mosaicml-streaming pass it.
        max_workers: Threads that hash, compress and store shards; each holds one in memory, beside the one
            that is being filled. By default up to 4 if shards are compressed or sent to a URL, else 1.
        retry: Further attempts, when sending a file fails.
        exist_ok: Remove a dataset that is in the folder already. Other files there stay.
        allow_pickle: Whether columns may be ``"pkl"``.

    Attributes:
        shards: What the index says about each shard so far.

    Raises:
        FileExistsError: The folder is not empty, another writer writes to it, or the URL has an index.
        ValueError: An argument is invalid. While writing: a value cannot be encoded.
        KeyError: While writing: a sample lacks a column.
        TypeError: While writing: a value is of the wrong type. A sample that raises is not written.
        OSError: While writing: a file cannot be stored.

    Source:
        ``streaming.MDSWriter`` (mosaicml-streaming 0.13).

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with MDSWriter(columns={"text": "str", "cls": "int"}, out=folder, hashes=["md5"]) as sink:
        ...         for number in range(3):
        ...             sink.write({"text": "abc", "cls": number})
        ...     sorted(os.listdir(folder))
        ['index.json', 'shard.00000.mds']
    """

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        out: str | os.PathLike[str] | tuple[str, str],
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        progress_bar: bool = False,
        max_workers: int | None = None,
        retry: int = 2,
        exist_ok: bool = False,
        allow_pickle: bool = False,
    ) -> None:
        self.columns = dict(columns)
        self._compression = Compression.of(compression) if compression else None
        self._hashes = _check_hashes(hashes or [])
        self._size_limit = parse_binary_size(size_limit)
        if (self._size_limit or 0) >= OFFSET_LIMIT:
            raise ValueError(f"size_limit must be below 4 GiB, as offsets have 32 bits, got {size_limit}")
        names = tuple(sorted(self.columns.items()))
        self._columns = [(name, encoding(each, allow_pickle)) for name, each in names]
        if self._compression is not None:
            self._compression.compress(b"")  # a missing package shows now
        self._common = describe_columns(names, compression or None, self._hashes, self._size_limit)
        self._head = json.dumps(self._common, sort_keys=True).encode()
        self._sizes = struct.Struct(f"<{sum(each.size is None for _, each in self._columns)}I")
        self.shards: list[dict[str, Any]] = []
        self._output = Output(
            out, keep_local, exist_ok, INDEX_NAME, None, max_workers, retry, self._compression is not None
        )
        self.local, self.remote = self._output.local, self._output.remote
        self._begin_shard()

    def write(self, sample: Mapping[str, Any]) -> None:
        """Writes a sample: a value of each column's type, or its encoded bytes. Other fields are ignored."""
        self._output.check_open()
        sizes, fields = [], [b""]
        name = ""
        try:
            for name, column in self._columns:
                field = column.encode(sample[name])
                fields.append(field)
                if column.size is None:
                    sizes.append(len(field))
                elif len(field) != column.size:
                    raise ValueError(f"it has {len(field)} bytes, and {column.name} has {column.size}")
        except KeyError:
            raise KeyError(f"the sample has no field {name!r}: it has {sorted(map(str, sample))}") from None
        except (TypeError, ValueError, OverflowError, OSError) as error:  # OSError: Pillow's
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"the field {name!r} cannot be encoded: {error}") from error
        try:
            fields[0] = self._sizes.pack(*sizes)
        except struct.error:
            raise ValueError(f"a field cannot have {max(sizes)} bytes, 4 GiB or more") from None
        data = b"".join(fields)
        size = len(data) + _BYTES_A_SAMPLE
        if self._size_limit and self._size_limit < self._size + size:
            self._end_shard()
        if self._size + size >= OFFSET_LIMIT:
            raise ValueError(f"a shard cannot have {self._size + size} bytes, 4 GiB or more: set size_limit")
        self._data += data
        self._sizes_of_samples.append(len(data))
        self._size += size

    def finish(self) -> None:
        """Waits until all shards are stored, then writes the index. Does nothing the second time."""
        if self._sizes_of_samples:
            self._end_shard()
        self._output.finish(lambda: dump_index(self.shards))

    close = finish

    def discard(self) -> None:
        """Ends without an index; complete shards stay."""
        self._output.discard()

    def _begin_shard(self) -> None:
        self._data, self._sizes_of_samples = bytearray(), array("q")
        self._size = 8 + len(self._head)

    # A first sample above the limit has an empty shard before it, as it has in mosaicml-streaming.
    def _end_shard(self) -> None:
        data, sizes, name = self._data, self._sizes_of_samples, f"shard.{len(self.shards):05}.mds"
        shard = {**self._common, "samples": len(sizes)}
        self._output.add(lambda: self._store(name, data, sizes, shard))
        self.shards.append(shard)
        self._begin_shard()

    def _store(self, name: str, data: bytearray, sizes: array[int], shard: dict[str, Any]) -> None:
        offsets = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        offsets += 4 + 4 * len(offsets) + len(self._head)
        table = struct.pack("<I", len(sizes)) + offsets.astype("<u4").tobytes()
        data[:0] = table + self._head  # moves the data, which joining would copy
        shard["raw_data"] = self._describe(name, data)
        shard["zip_data"] = None
        stored: bytes | bytearray = data
        if self._compression is not None:
            name, stored = f"{name}.{self._compression.extension}", self._compression.compress(data)
            shard["zip_data"] = self._describe(name, stored)
        self._output.store(name, stored)

    def _describe(self, name: str, data: bytes | bytearray) -> dict[str, Any]:
        hashes = {each: digest(each, data) for each in self._hashes}
        return {"basename": name, "bytes": len(data), "hashes": hashes}


def _check_hashes(names: Sequence[str]) -> list[str]:
    if isinstance(names, str) or list(names) != sorted(set(names)):
        raise ValueError(
            f"hashes must be a list of names, each once and in alphabetical order, got {names!r}"
        )
    for name in names:
        digest(name, b"")
    return list(names)
