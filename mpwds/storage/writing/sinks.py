"""Sinks that take one sample after another: a tar file, a series of tar files, and files of records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from mpwds.imports import require
from mpwds.storage.streams.base import ClosesOrDiscards
from mpwds.storage.streams.gopen import exists
from mpwds.storage.streams.urls import is_local, without_credentials
from mpwds.storage.writing.destinations import (
    Destination,
    is_series,
    numbered,
    open_destination,
    parts_of_series,
    write_all,
)
from mpwds.storage.writing.tar_members import archive_bytes, member_bytes
from mpwds.storage.writing.tar_writer import ShardWriter, TarWriter

_WITHOUT_LIMIT = 1 << 62


class WriteOptions(NamedTuple):
    """Options of writing a dataset."""

    maxcount: int = 10_000  # samples in a tar shard or record file, at most
    maxsize: int | None = None  # bytes in a shard; None for the format's default
    compression: str = ""  # as MDS names it, such as "zstd:7"; empty for none
    hashes: tuple[str, ...] = ()  # in an MDS index
    force: bool = False  # replace what exists
    sync: bool = False  # a tar shard is on the disk before it has its name


class Sink(Protocol):
    """Takes samples: ``__key__``, and fields' bytes. ``shards`` has an item for each shard so far."""

    shards: Any

    def write(self, sample: Mapping[str, Any]) -> object: ...


def tar_sink(where: str, options: WriteOptions) -> AbstractContextManager[Sink]:
    """Writes one tar file, or a series if ``where`` has a ``%`` directive."""
    _refuse_mds_options(options)
    return _TarSeries(where, options) if is_series(where) else _OneTar(where, options)


def record_sink(kind: str, where: str, options: WriteOptions) -> AbstractContextManager[Sink]:
    """Writes files of records: ``"msgpack"`` or ``"cbor"``."""
    _refuse_mds_options(options)
    return _Records(kind, where, options)


def _check_free(url: str, options: WriteOptions) -> None:
    """Raises ``FileExistsError`` if an object of this name would be replaced; of files their end tells."""
    if not options.force and not is_local(url) and exists(url):
        shown = without_credentials(url)
        raise FileExistsError(f"{shown} exists already: choose another name, or --force to replace")


def _refuse_mds_options(options: WriteOptions) -> None:
    if options.compression or options.hashes:
        raise ValueError("--compression and --hashes are for MDS datasets alone")


def _as_given(options: WriteOptions) -> dict[str, Any]:
    """Arguments of ``TarWriter`` that keep the samples' bytes as they are."""
    kept = {"encoder": False, "keep_meta": True, "mtime": 0}
    return {**kept, "sync": options.sync, "replace": options.force}


class _OneTar(TarWriter):
    def __init__(self, where: str, options: WriteOptions) -> None:
        super().__init__(where, **_as_given(options))
        self.shards = [where]


class _TarSeries(ShardWriter):
    """Limits the bytes of whole archives, not of the data in them."""

    def __init__(self, where: str, options: WriteOptions) -> None:
        front, directive, back = parts_of_series(where)
        pattern = f"{front.replace('%', '%%')}{directive}{back.replace('%', '%%')}"
        self.shards: list[str] = []
        self._limits = options
        how = _as_given(options)
        super().__init__(pattern, options.maxcount, post=self.shards.append, verbose=0, **how)
        self.maxsize = _WITHOUT_LIMIT
        self._most = options.maxsize or 10**9
        self._in_shard = 0

    def write(self, sample: Mapping[str, Any]) -> None:
        key = sample["__key__"]
        size = sum(
            member_bytes(len(data), f"{key}.{name}") for name, data in sample.items() if name != "__key__"
        )
        if archive_bytes(self._in_shard + size) > self._most:
            self.next_stream()
        super().write(sample)
        self._in_shard = size if self.count == 1 else self._in_shard + size

    def _open_next(self) -> TarWriter:
        _check_free(self.pattern % self.shard, self._limits)
        return super()._open_next()


class _Records(ClosesOrDiscards):
    """Files of MessagePack messages or CBOR items, a dictionary for each sample."""

    def __init__(self, kind: str, where: str, options: WriteOptions) -> None:
        self._pack: Callable[[Any], bytes]
        if kind == "msgpack":
            self._pack = require("msgpack", "").packb
        else:
            self._pack = require("cbor2", "CBOR is encoded with cbor2: pip install 'mpwds[cbor]'").dumps
        is_one = not is_series(where)
        self._where = where
        self._options = options
        self._maxcount = _WITHOUT_LIMIT if is_one else options.maxcount
        self._maxsize = _WITHOUT_LIMIT if is_one else options.maxsize or 10**9
        self.shards: list[str] = []
        self._count = self._size = 0
        self._file: Destination | None = None

    def write(self, sample: Mapping[str, Any]) -> None:
        data = self._pack(dict(sample))
        is_full = self._count >= self._maxcount or self._size + len(data) > self._maxsize
        if self._file is not None and is_full:
            self._file.publish()
            self._file = None
        if self._file is None:
            self.shards.append(numbered(self._where, len(self.shards)))
            _check_free(self.shards[-1], self._options)
            self._file = open_destination(self.shards[-1], replace=self._options.force)
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
