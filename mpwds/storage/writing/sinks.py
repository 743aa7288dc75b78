"""Sinks that take one sample after another, and write them to one shard or a series of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from mpwds.imports import require
from mpwds.storage.streams.base import ClosesOrDiscards
from mpwds.storage.streams.gopen import exists
from mpwds.storage.streams.urls import is_local, without_credentials
from mpwds.storage.writing.destinations import is_series, numbered, open_destination, write_all
from mpwds.storage.writing.tar_members import archive_bytes, sample_bytes
from mpwds.storage.writing.tar_writer import TarWriter

_SHARD_BYTES = 10**9


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


class _Shard(Protocol):
    """Appears under its name when it is closed."""

    def close(self) -> None: ...
    def discard(self) -> None: ...


S = TypeVar("S", bound=_Shard)


class SeriesSink(ClosesOrDiscards, Generic[S]):
    """Base of sinks that write one shard, or a series of them if ``where`` has a ``%`` directive.

    ``open`` opens a shard. In a series it has up to ``maxcount`` samples and ``maxsize`` bytes, or a single
    sample; ``None`` is no limit. ``total`` computes a shard's bytes from those of its samples. An exception
    inside ``with`` leaves the complete ``shards`` and drops the current one. Without samples, a series has no
    shard.
    """

    def __init__(
        self,
        where: str,
        open: Callable[[str], S],
        maxcount: int | None,
        maxsize: int | None,
        force: bool,
        total: Callable[[int], int] = archive_bytes,
    ) -> None:
        self.shards: list[str] = []
        self._where = where
        self._open = open
        self._maxcount = math.inf if maxcount is None else maxcount
        self._maxsize = maxsize
        self._force = force
        self._total = total
        self._shard: S | None = None
        self._is_series = is_series(where)
        if not self._is_series:
            self._open_next()

    def shard_for(self, nbytes: int) -> S:
        """The shard for a sample of so many bytes: the current one, or the next if it has no room there."""
        if (self._is_series and self._shard is not None) and (
            self._count >= self._maxcount
            or (self._maxsize is not None and self._total(self._size + nbytes) > self._maxsize)
        ):
            self.close()
        shard = self._shard or self._open_next()
        self._count += 1
        self._size += nbytes
        return shard

    def _open_next(self) -> S:
        name = numbered(self._where, len(self.shards))
        if self._is_series and not self._force and not is_local(name) and exists(name):
            shown = without_credentials(name)
            raise FileExistsError(f"{shown} exists already: choose another name, or --force to replace")
        self._shard = shard = self._open(name)
        self.shards.append(name)
        self._count = self._size = 0
        return shard

    def close(self) -> None:
        """Completes the current shard."""
        if self._shard is not None:
            self._shard.close()
            self._shard = None

    def discard(self) -> None:
        """Drops the current shard."""
        if self._shard is not None:
            self._shard.discard()


def tar_sink(where: str, options: WriteOptions) -> AbstractContextManager[Sink]:
    """Writes one tar file, or a series if ``where`` has a ``%`` directive."""
    _refuse_mds_options(options)
    return _TarShards(where, options)


def record_sink(kind: str, where: str, options: WriteOptions) -> AbstractContextManager[Sink]:
    """Writes files of records: ``"msgpack"`` or ``"cbor"``."""
    _refuse_mds_options(options)
    pack: Callable[[Any], bytes]
    if kind == "msgpack":
        pack = require("msgpack", "").packb
    else:
        pack = require("cbor2", "CBOR is encoded with cbor2: pip install 'mpwds[cbor]'").dumps
    return _Records(where, options, pack)


def _refuse_mds_options(options: WriteOptions) -> None:
    if options.compression or options.hashes:
        raise ValueError("--compression and --hashes are for MDS datasets alone")


class _TarShards(SeriesSink[TarWriter]):
    """Tar shards that keep the bytes of fields as they are."""

    def __init__(self, where: str, options: WriteOptions) -> None:
        how: dict[str, Any] = {"sync": options.sync, "replace": options.force}
        open = partial(TarWriter, encoder=False, keep_meta=True, mtime=0, **how)
        super().__init__(where, open, options.maxcount, options.maxsize or _SHARD_BYTES, options.force)

    def write(self, sample: Mapping[str, Any]) -> None:
        self.shard_for(sample_bytes(sample)).write(dict(sample))


class _Records(SeriesSink["_RecordFile"]):
    """Files of MessagePack messages or CBOR items, a dictionary for each sample."""

    def __init__(self, where: str, options: WriteOptions, pack: Callable[[Any], bytes]) -> None:
        self._pack = pack
        open, maxsize = partial(_RecordFile, replace=options.force), options.maxsize or _SHARD_BYTES
        super().__init__(where, open, options.maxcount, maxsize, options.force, total=int)

    def write(self, sample: Mapping[str, Any]) -> None:
        data = self._pack(dict(sample))
        self.shard_for(len(data)).write(data)


class _RecordFile:
    def __init__(self, name: str, replace: bool) -> None:
        self._name = name
        self._file = open_destination(name, replace=replace)

    def write(self, data: bytes) -> None:
        write_all(self._file.stream, data, self._name)

    def close(self) -> None:
        self._file.publish()

    def discard(self) -> None:
        self._file.discard()
