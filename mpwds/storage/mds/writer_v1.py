"""Writes MDS datasets of version 1, composer's."""

from __future__ import annotations

import os
import re
import struct
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from mpwds.storage.mds.output import Output
from mpwds.storage.mds.shards_v1 import INDEX_NAME, dump_index
from mpwds.storage.mds.stored_files import Compression
from mpwds.storage.streams.resuming import ClosesOrDiscards

_OWN = re.compile(r"(index|\d{6,})\.mds(\.gz)?|compression\.txt")
_COMPRESSION = re.compile(r"gz(:[1-9])?")


class StreamingDatasetWriter(ClosesOrDiscards):
    """Writes an MDS dataset of version 1: shards and an index, for ``mpwds.StreamingDataset`` and composer.

    Each file appears when it is complete, the index after all shards. An exception inside ``with`` leaves the
    shards that are complete, without an index. Where composer's own writer would write sizes that its reader
    takes for negative numbers (128 to 255 bytes, for example), the index has wider ones.

    Args:
        dirname: The dataset's folder, which is created, or URL.
        fields: Names of the fields to write, in this order.
        shard_size_limit: A shard has fewer bytes than this, unless its only sample has more.
        compression: ``None``, ``"gz"``, or ``"gz:1"`` to ``"gz:9"``.

    Raises:
        FileExistsError: The folder or URL holds such a dataset or parts of one, or another writer writes to
            the folder.
        ValueError: An argument is invalid.
        KeyError: While writing: a sample lacks a field.
        TypeError: While writing: a field is not bytes. A sample that raises is not written.
        OSError: While writing: a file cannot be stored.

    Source:
        ``composer.datasets.streaming.StreamingDatasetWriter`` (composer before 0.12).

    Example:
        >>> import tempfile
        >>> samples = [{"uid": b"%06d" % number, "data": bytes(4)} for number in range(100)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with StreamingDatasetWriter(dirname=folder, fields=["uid", "data"]) as sink:
        ...         sink.write_samples(samples, use_tqdm=False)
        ...     sorted(os.listdir(folder))
        ['000000.mds', 'index.mds']
    """

    def __init__(
        self,
        dirname: str | os.PathLike[str],
        fields: Sequence[str],
        shard_size_limit: int = 1 << 24,
        compression: str | None = None,
    ) -> None:
        if len(set(fields)) < len(fields):
            raise ValueError(f"fields must be different names, got {list(fields)}")
        if shard_size_limit < 1:
            raise ValueError(f"shard_size_limit must be at least 1, got {shard_size_limit}")
        if compression is not None and not _COMPRESSION.fullmatch(compression):
            raise ValueError(f"compression must be None, 'gz', or 'gz:1' to 'gz:9', got {compression!r}")
        self.dirname = dirname
        self.fields = list(fields)
        self.shard_size_limit = shard_size_limit
        self._compression = None if compression is None else Compression.of(compression)
        self._end = "" if self._compression is None else f".{self._compression.extension}"
        self._head = struct.Struct(f"<{len(self.fields)}q")
        self._output = Output(
            dirname, False, False, INDEX_NAME + self._end, _OWN, compresses=self._compression is not None
        )
        if self._compression is not None:
            self._output.add(lambda: self._output.store("compression.txt", b"gz\n"))
        self.samples_per_shard = self.shards = list[int]()
        self._bytes_per_shard: list[int] = []
        self._sample_sizes = array("q")
        self._begin_shard()

    def write_sample(self, sample: Mapping[str, bytes]) -> None:
        """Writes the ``fields`` of a sample, and ignores others."""
        self._output.check_open()
        try:
            values = [sample[name] for name in self.fields]
        except KeyError as error:
            raise KeyError(f"the sample has no field {error}: it has {sorted(map(str, sample))}") from None
        for name, value in zip(self.fields, values, strict=True):
            if not isinstance(value, (bytes, bytearray)):
                raise TypeError(f"the field {name!r} must be bytes, got {type(value).__name__}")
        data = b"".join([self._head.pack(*map(len, values)), *values])
        if self.shard_size_limit <= self._size + len(data):
            self._end_shard()
        self._data += data
        self._count += 1
        self._size += len(data)
        self._sample_sizes.append(len(data))

    write = write_sample  # as other writers call it

    def write_samples(
        self, samples: Iterable[Mapping[str, bytes]], use_tqdm: bool = True, total: int | None = None
    ) -> None:
        """Writes many samples.

        Args:
            samples: The samples.
            use_tqdm: Show the progress on standard error, if it is a terminal and tqdm is installed.
            total: Number of samples, for the progress.
        """
        if use_tqdm and sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ImportError:
                pass
            else:
                samples = tqdm(samples, total=total, leave=False)
        for sample in samples:
            self.write_sample(sample)

    def finish(self) -> None:
        """Waits until all shards are stored, then writes the index. Does nothing the second time."""
        if self._count:
            self._end_shard()
        self._output.finish(self._index)

    close = finish

    def discard(self) -> None:
        """Ends without an index; complete shards stay."""
        self._output.discard()

    def _begin_shard(self) -> None:
        self._data = bytearray()
        self._count = self._size = 0

    # A first sample above the limit has an empty shard before it, as it has in composer.
    def _end_shard(self) -> None:
        data, name = self._data, f"{len(self.samples_per_shard):06}.mds{self._end}"
        self._output.add(lambda: self._output.store(name, self._packed(data)))
        self.samples_per_shard.append(self._count)
        self._bytes_per_shard.append(self._size)
        self._begin_shard()

    def _index(self) -> bytes | bytearray:
        sizes = np.frombuffer(self._sample_sizes, np.int64)
        return self._packed(dump_index(self.samples_per_shard, self._bytes_per_shard, sizes, self.fields))

    def _packed(self, data: bytes | bytearray) -> bytes | bytearray:
        return data if self._compression is None else self._compression.compress(data)
