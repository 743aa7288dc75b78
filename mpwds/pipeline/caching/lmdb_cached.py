"""Keep a stream's elements in an LMDB database."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.caching.database import DatabaseStore, Pickler, Transaction
from mpwds.pipeline.caching.stored import Stored, part_of
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.stream import Stream
from mpwds.storage.streams.urls import refuse_in_secure_mode

_READERS = 1024  # at a time; LMDB's own default of 126 is less than some machines have workers


def lmdb_cached(
    fname: str | os.PathLike[str],
    map_size: float = 1e12,
    pickler: Pickler | None = None,
    chunksize: int = 500,
    fingerprint: str = "",
) -> LMDBCached:
    """Stage that stores its source's elements in an LMDB database, and yields these from the second epoch on.

    The database outlives the process, and several processes may use it at a time. Each worker has its own
    part, so the parts together hold every element once. Another number of workers or ranks, or another seed,
    makes new parts.

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
            another fingerprint, was made by another ``pickler``, or not by this stage.
        TypeError: While iterating, an element holds something that cannot be stored.
        MemoryError: While iterating, the database is full: more than ``map_size`` bytes.
        ImportError: While iterating, the ``lmdb`` package is not installed: ``pip install 'mpwds[lmdb]'``.
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
    pickler: Pickler | None = None
    chunksize: int = 500
    fingerprint: str = ""
    pins_epoch = True

    def __post_init__(self) -> None:
        if self.chunksize < 1:
            raise ValueError(f"lmdb_cached: chunksize must be at least 1, got {self.chunksize}")
        if self.map_size < 4096:
            raise ValueError(f"lmdb_cached: map_size must be at least 4096 bytes, got {self.map_size}")

    def __str__(self) -> str:
        given = options(
            map_size=(self.map_size, 1e12),
            pickler=(getattr(self.pickler, "__name__", self.pickler), None),
            chunksize=(self.chunksize, 500),
        )
        return f"lmdb_cached({arguments(os.fspath(self.fname), **given)})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        if self.pickler is not None:
            refuse_in_secure_mode("lmdb_cached takes no pickler, whose loads() may run what a database holds")
        return Stored(source, _LmdbStore(self, part_of(context)))


_environments: weakref.WeakValueDictionary[str, _Environment] = weakref.WeakValueDictionary()


class _Environment:
    """An open database."""

    def __init__(self, path: str, map_size: int) -> None:
        try:
            import lmdb
        except ImportError as error:
            raise ImportError("lmdb_cached needs the lmdb package: pip install 'mpwds[lmdb]'") from error
        self.full = lmdb.MapFullError
        self.map_size = map_size
        self.handle = lmdb.open(path, map_size=map_size, max_readers=_READERS)
        weakref.finalize(self, self.handle.close)


def _environment(path: str, map_size: int) -> _Environment:
    """The environment of a directory: LMDB allows one per process."""
    environment = _environments.get(path)
    if environment is None:
        environment = _environments[path] = _Environment(path, map_size)
    return environment


class _LmdbStore(DatabaseStore):
    def __init__(self, stage: LMDBCached, part: str) -> None:
        path = os.path.realpath(stage.fname)
        self._map_size = int(stage.map_size)
        super().__init__(path, "lmdb_cached", part, stage.chunksize, stage.fingerprint, stage.pickler)

    @contextlib.contextmanager
    def _begin(self, write: bool = False) -> Iterator[Transaction]:
        # Opened again in a fork, which must not use the environment of its parent.
        self._environment = environment = _environment(self._path, self._map_size)
        try:
            with environment.handle.begin(write=write) as transaction:
                yield _LmdbTransaction(transaction)
        except environment.full as error:
            raise MemoryError(
                f"{self._path} is full: it has map_size={environment.map_size} bytes; give a larger one"
            ) from error


class _LmdbTransaction:
    def __init__(self, transaction: Any) -> None:
        self._transaction = transaction
        self.get = transaction.get
        self.put = transaction.put

    def last(self, key: bytes) -> tuple[bytes, bytes] | None:
        cursor = self._transaction.cursor()
        found = cursor.last() if not cursor.set_range(key) else cursor.key() == key or cursor.prev()
        return cursor.item() if found else None

    def delete(self, prefix: bytes) -> None:
        cursor = self._transaction.cursor()
        more = cursor.set_range(prefix)
        while more and cursor.key().startswith(prefix):
            more = cursor.delete()


def _close_in_child() -> None:
    for environment in list(_environments.values()):
        environment.handle.close()
    _environments.clear()


os.register_at_fork(after_in_child=_close_in_child)
