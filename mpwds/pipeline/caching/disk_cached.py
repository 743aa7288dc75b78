"""Keep a stream's elements on disk."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from mpwds.pipeline.caching.disk_store import DiskStore, ElementCodec
from mpwds.pipeline.caching.stored import Stored, part_of
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.error_context import arguments, changed
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.stream import Stream
from mpwds.storage.streams.urls import refuse_in_secure_mode

_ROWS = 16  # written at a time by DBCache: what a process that is killed may lose


def lmdb_cached(
    fname: str | os.PathLike[str],
    map_size: float = 1e12,
    pickler: ElementCodec | None = None,
    chunksize: int = 500,
    fingerprint: str = "",
) -> LMDBCached:
    """Stage that stores its source's elements in a database, and yields these from the second epoch on.

    The database outlives the process, and several processes may use it at a time. It is SQLite's: the name is
    webdataset's, which uses LMDB. Each worker has its own part, so the parts together hold every element
    once. Another number of workers or ranks, or another seed, makes new parts.

    The stages before this one run as in epoch 0, in every epoch. If an epoch stops early, or its process is
    killed, the next one yields what is stored and continues with the source, which makes the elements again
    that were not written yet. A complete part never uses the source again. So delete the database, or change
    ``fingerprint``, to store other elements.

    Args:
        fname: The database's directory; created if it is missing. The disk must be local.
        map_size: The database's largest size in bytes; disk space is used only as elements come.
        pickler: Converts elements to bytes and back, such as ``pickle`` for databases that you trust. By
            default nested dicts, lists, arrays, tensors, numbers, strings and bytes are stored without
            pickle.
        chunksize: Elements written at a time.
        fingerprint: Identifies what made the elements (the pipeline's ``repr``, a version). A database with
            another one is refused. Empty for no check.

    Raises:
        ValueError: ``chunksize`` is below 1, or ``map_size`` below 4096; while iterating, the database has
            another fingerprint, was made by another ``pickler``, or not by this stage (by LMDB, say).
        TypeError: While iterating, an element holds something that cannot be stored.
        MemoryError: While iterating, the database is full: more than ``map_size`` bytes.
        SecurityError: While iterating, ``pickler`` is given and the secure mode is on (``WDS_SECURE=1``).

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     for source in ("ab", "cd"):
        ...         list(lmdb_cached(directory)(source))
        ['a', 'b']
        ['a', 'b']
    """
    return LMDBCached(fname, map_size, pickler, chunksize, fingerprint)


@dataclass(frozen=True)
class LMDBCached(Filter):
    """The stage that ``lmdb_cached`` makes, by webdataset's name (``webdataset.filters.LMDBCached``)."""

    fname: str | os.PathLike[str]
    map_size: float = 1e12
    pickler: ElementCodec | None = None
    chunksize: int = 500
    fingerprint: str = ""
    pins_epoch = True

    def __post_init__(self) -> None:
        if self.chunksize < 1:
            raise ValueError(f"lmdb_cached: chunksize must be at least 1, got {self.chunksize}")
        if self.map_size < 4096:
            raise ValueError(f"lmdb_cached: map_size must be at least 4096 bytes, got {self.map_size}")

    def __str__(self) -> str:
        given = changed(self, "map_size", "pickler", "chunksize")
        if isinstance(self.pickler, ModuleType):
            given["pickler"] = self.pickler.__name__
        return f"lmdb_cached({arguments(os.fspath(self.fname), **given)})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        if self.pickler is not None:
            refuse_in_secure_mode("lmdb_cached takes no pickler, whose loads() may run what a database holds")
        folder = os.path.realpath(self.fname)
        if os.path.exists(os.path.join(folder, "data.mdb")):
            raise ValueError(
                f"{folder} is an LMDB database that mpwds did not make, or an earlier version of it: delete "
                "it, or give another path"
            )
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "elements.db")
        part, given = part_of(context), (self.chunksize, self.fingerprint, self.pickler, self.map_size)
        return Stored(source, DiskStore(path, "lmdb_cached", part, *given))


@dataclass(frozen=True)
class DBCache(Filter):
    """Stage that stores up to ``size`` elements of its source in an SQLite database, and yields only these.

    The first epoch yields the source's elements and stores them; it ends after ``size`` elements or with the
    source. Later epochs do not use the source. Use it to work on a part of a large dataset, or for a small
    dataset whose source is slow.

    The database is one file. Which parts it has, how an epoch that stopped early continues, what can be
    stored and what ``fingerprint`` means is the same as for :func:`mpwds.lmdb_cached`. Each worker stores an
    equal share of ``size``.

    Args:
        path: The database; created if it is missing. The disk must be local.
        size: Elements to store, in all workers together.
        shuffle: Yield the elements of a complete part in random order, which depends on seed, epoch, rank and
            worker.
        fingerprint: Identifies what made the elements.

    Raises:
        ValueError: ``size`` is below 1; while iterating, the file has another fingerprint, or this stage did
            not make it.
        TypeError: While iterating, an element holds something that cannot be stored.
        LookupError: A state of a complete part is loaded, and the part is incomplete now.

    Source:
        ``webdataset.dbcache.DBCache`` (0.1).

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     cache = DBCache(os.path.join(directory, "samples.db"), 2)
        ...     list(cache("abc")), list(cache("xyz"))
        (['a', 'b'], ['a', 'b'])
    """

    path: str | os.PathLike[str]
    size: int
    shuffle: bool = False
    fingerprint: str = ""
    pins_epoch = True

    def __post_init__(self) -> None:
        if not isinstance(self.path, (str, os.PathLike)):
            raise TypeError(
                "DBCache is a stage, it takes no dataset: write dataset.compose(DBCache, path, size)"
            )
        if self.size < 1:
            raise ValueError(f"DBCache: size must be at least 1, got {self.size}")

    def __str__(self) -> str:
        return f"dbcache({arguments(os.fspath(self.path), self.size, **changed(self, 'shuffle'))})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        path = os.path.abspath(self.path)
        store = DiskStore(path, "DBCache", part_of(context), _ROWS, self.fingerprint)
        parts = context.world_size * context.workers
        before = context.rank * context.workers + context.worker
        share = self.size * (before + 1) // parts - self.size * before // parts
        return Stored(source, store, self._order(store, context), share)

    def _order(self, store: DiskStore, context: Context) -> Sequence[int] | None:
        if not self.shuffle or not store.is_complete():
            return None
        order = list(range(store.count()))
        place = (context.seed or 0, context.moment, context.rank, context.worker, context.stage)
        random.Random("dbcache/" + "/".join(map(str, place))).shuffle(order)
        return order
