"""What ``convert`` writes: tar shards, MDS of both versions, and record files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from mpwds.cli.making.encodings import KEY
from mpwds.cli.outputs import is_series, make_folders, numbered, parts_of_series, refuse_existing
from mpwds.imports import require
from mpwds.storage.closing import ClosesOrDiscards
from mpwds.storage.writing.destinations import Destination, open_destination, write_all
from mpwds.storage.writing.tar_writer import TarWriter, archive_bytes, member_bytes
from mpwds.storage.writing.writers import ShardWriter

_WITHOUT_LIMIT = 1 << 62


class Options(NamedTuple):
    """How to write.

    Attributes:
        maxcount: Samples in a tar shard or record file, at most.
        maxsize: Bytes in a shard; ``None`` for the format's default.
        compression: As MDS names it, such as ``"zstd:7"``; empty for none.
        hashes: Names of hashes in an MDS index.
        force: Replace what exists.
    """

    maxcount: int
    maxsize: int | None
    compression: str
    hashes: tuple[str, ...]
    force: bool


class Sink(Protocol):
    """Takes samples: ``__key__``, and fields' bytes. ``shards`` has an item for each shard so far."""

    shards: Any

    def write(self, sample: Mapping[str, Any]) -> object: ...


def open_sink(
    kind: str, where: str, columns: Mapping[str, str], options: Options
) -> AbstractContextManager[Sink]:
    """Opens a dataset for writing. An exception inside ``with`` leaves no half of a shard, and no index.

    Args:
        kind: One of ``FORMATS``.
        where: A folder or URL for MDS; else a pattern, or the name of one file.
        columns: For MDS, the encodings of columns by name, in order.
        options: How to write.

    Raises:
        FileExistsError: There is a dataset already.
        ValueError: The format has no such option.
    """
    if kind in ("tar", "msgpack", "cbor"):
        if options.compression or options.hashes:
            raise ValueError("--compression and --hashes are for MDS datasets alone")
        refuse_existing([where], options.force)
        make_folders([where])
    if kind == "tar":
        if not is_series(where):
            return _OneTar(where, encoder=False, mtime=0, sync=False, replace=options.force)
        return _TarShards(where, options)
    if kind == "mds":
        from mpwds.storage.mds.writer_v2 import MDSWriter

        return MDSWriter(
            columns=columns,
            out=where,
            compression=options.compression or None,
            hashes=options.hashes,
            size_limit=options.maxsize or 1 << 26,
            exist_ok=options.force,
            allow_pickle=True,  # the bytes of pickles are copied
        )
    if kind == "mds1":
        if options.hashes:
            raise ValueError("--hashes are for MDS of version 2 alone")
        if options.force:
            raise ValueError("--force does not replace MDS datasets of version 1: remove the folder first")
        return _Version1(where, list(columns), options)
    return _Records(kind, where, options)


class _OneTar(TarWriter):
    def __init__(self, where: str, **how: Any) -> None:
        super().__init__(where, **how)
        self.shards = [where]


class _TarShards(ShardWriter):
    """Limits the bytes of whole archives, not of the data in them."""

    def __init__(self, where: str, options: Options) -> None:
        front, directive, back = parts_of_series(where)
        pattern = f"{front.replace('%', '%%')}{directive}{back.replace('%', '%%')}"
        how: dict[str, Any] = {"encoder": False, "mtime": 0, "sync": False, "replace": options.force}
        self.shards: list[str] = []
        super().__init__(pattern, options.maxcount, post=self.shards.append, verbose=0, **how)
        self.maxsize = _WITHOUT_LIMIT
        self._most = options.maxsize or 10**9
        self._in_shard = 0

    def write(self, sample: Mapping[str, Any]) -> None:
        key = sample[KEY]
        size = sum(member_bytes(len(data), f"{key}.{name}") for name, data in sample.items() if name != KEY)
        if archive_bytes(self._in_shard + size) > self._most:
            self.next_stream()
        super().write(sample)
        self._in_shard = size if self.count == 1 else self._in_shard + size


class _Version1(ClosesOrDiscards):
    def __init__(self, where: str, fields: list[str], options: Options) -> None:
        from mpwds.storage.mds.writer_v1 import StreamingDatasetWriter

        limit = options.maxsize or 1 << 24
        writer = StreamingDatasetWriter(where, fields, limit, options.compression or None)
        self.shards = writer.samples_per_shard
        self.write, self.close, self.discard = writer.write_sample, writer.finish, writer.discard


class _Records(ClosesOrDiscards):
    """Files of MessagePack messages or CBOR items, a dictionary for each sample."""

    def __init__(self, kind: str, where: str, options: Options) -> None:
        self._pack: Callable[[Any], bytes]
        if kind == "msgpack":
            self._pack = require("msgpack", "").packb
        else:
            self._pack = require("cbor2", "CBOR is encoded with cbor2: pip install 'mpwds[cbor]'").dumps
        is_one = not is_series(where)
        self._where = where
        self._force = options.force
        self._maxcount = _WITHOUT_LIMIT if is_one else options.maxcount
        self._maxsize = _WITHOUT_LIMIT if is_one else options.maxsize or 10**9
        self.shards: list[str] = []
        self._count = self._size = 0
        self._file: Destination | None = None

    def write(self, sample: Mapping[str, Any]) -> None:
        data = self._pack(dict(sample))
        if self._file is not None and (self._count >= self._maxcount or self._size >= self._maxsize):
            self._file.publish()
            self._file = None
        if self._file is None:
            self.shards.append(numbered(self._where, len(self.shards)))
            self._file = open_destination(self.shards[-1], replace=self._force)
            self._count = self._size = 0
        write_all(self._file.stream, data, self.shards[-1])
        self._count += 1
        self._size += len(data)

    def close(self) -> None:
        if self._file is not None:
            self._file.publish()

    def discard(self) -> None:
        if self._file is not None:
            self._file.discard()
