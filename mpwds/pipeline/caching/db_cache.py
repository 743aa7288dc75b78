"""Keep the first elements of a stream in an SQLite database."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.caching.database import DatabaseStore, Transaction
from mpwds.pipeline.caching.stored import Stored, part_of
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.stream import Stream

_WAIT_S = 60.0
_PAUSE_S = 0.01
_ROWS = 16  # written at a time: what a process that is killed may lose


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
        return (
            f"dbcache({arguments(os.fspath(self.path), self.size, **options(shuffle=(self.shuffle, False)))})"
        )

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        store = _SqliteStore(self, part_of(context))
        parts = context.world_size * context.workers
        before = context.rank * context.workers + context.worker
        share = self.size * (before + 1) // parts - self.size * before // parts
        return Stored(source, store, self._order(store, context), share)

    def _order(self, store: _SqliteStore, context: Context) -> Sequence[int] | None:
        if not self.shuffle or not store.is_complete():
            return None
        order = list(range(store.count()))
        place = (context.seed or 0, context.moment, context.rank, context.worker, context.stage)
        random.Random("dbcache/" + "/".join(map(str, place))).shuffle(order)
        return order


_stores: weakref.WeakSet[_SqliteStore] = weakref.WeakSet()


class _SqliteStore(DatabaseStore):
    def __init__(self, stage: DBCache, part: str) -> None:
        self._lock = threading.RLock()  # a fork in another thread closes the connection
        self._connection: sqlite3.Connection | None = None
        _stores.add(self)
        super().__init__(os.path.abspath(stage.path), "DBCache", part, _ROWS, stage.fingerprint)

    def disconnect(self) -> None:
        """Closes the connection; the next use opens another one."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextlib.contextmanager
    def _begin(self, write: bool = False) -> Iterator[Transaction]:
        with self._lock:
            if self._connection is None:
                self._connection = self._connect()
            connection = self._connection
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield _SqliteTransaction(connection)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def _connect(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                self._path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
            )
        except sqlite3.OperationalError as error:
            raise OSError(f"the database {self._path} cannot be opened: {error}") from error
        try:
            _use_write_ahead_log(connection)
            _create_table(connection, self._path)
        except sqlite3.DatabaseError as error:
            connection.close()
            raise ValueError(f"{self._path} cannot be used as a database: {error}") from error
        weakref.finalize(self, connection.close)
        return connection


class _SqliteTransaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute

    def get(self, key: bytes) -> bytes | None:
        row = self._execute("SELECT value FROM mpwds WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def put(self, key: bytes, value: bytes) -> None:
        self._execute("INSERT OR REPLACE INTO mpwds VALUES (?, ?)", (key, value))

    def last(self, key: bytes) -> Any:
        query = "SELECT key, value FROM mpwds WHERE key <= ? ORDER BY key DESC LIMIT 1"
        return self._execute(query, (key,)).fetchone()

    def delete(self, prefix: bytes) -> None:
        # No key is longer than its prefix by more than 16 bytes.
        self._execute("DELETE FROM mpwds WHERE key BETWEEN ? AND ?", (prefix, prefix + b"\xff" * 16))


def _create_table(connection: sqlite3.Connection, path: str) -> None:
    """Creates the table in an empty database; raises ``ValueError`` for a database of another program."""
    connection.execute("BEGIN IMMEDIATE")
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    if not tables:
        connection.execute("CREATE TABLE mpwds (key BLOB PRIMARY KEY, value BLOB NOT NULL)")
    connection.execute("COMMIT")
    if tables not in ([], ["mpwds"]):
        connection.close()
        raise ValueError(
            f"{path} is a database that was not made by this stage (or by another version of it): "
            "delete it, or give another path"
        )


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Lets others read while one writes. SQLite does not wait for another process that does the same."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def _disconnect_all() -> None:
    # A connection must not be used, nor even closed, in a fork of the process that opened it.
    for store in list(_stores):
        store.disconnect()


os.register_at_fork(before=_disconnect_all)
