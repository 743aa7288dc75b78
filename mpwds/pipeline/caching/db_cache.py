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
from functools import partial
from typing import Any, ClassVar

import msgpack

from mpwds.pipeline.caching.store import Checkpoints, Rows, Store, element_from_bytes, element_to_bytes
from mpwds.pipeline.caching.stored import Stored, part_of
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.stream import Address, Stream, as_address

_APPLICATION = 0x6D707764  # "mpwd", in the file's header
_FORMAT = 1
_WAIT_S = 60.0
_PAUSE_S = 0.01
_ROWS = 16  # written at a time: what a process that is killed may lose
_CLAIM = 64  # of the size, taken at a time by each worker

_SCHEMA = """
CREATE TABLE meta (fingerprint TEXT NOT NULL);
CREATE TABLE part (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    family TEXT NOT NULL,
    claimed INTEGER NOT NULL DEFAULT 0,
    complete INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE element (
    part INTEGER NOT NULL,
    position INTEGER NOT NULL,
    address BLOB NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (part, position)
);
CREATE INDEX element_address ON element (part, address);
CREATE TABLE checkpoint (
    part INTEGER NOT NULL,
    position INTEGER NOT NULL,
    state BLOB NOT NULL,
    PRIMARY KEY (part, position)
);
"""


@dataclass(frozen=True)
class DBCache(Filter):
    """Stage that stores up to ``size`` elements of its source in an SQLite database, and yields only these.

    The first epoch yields the source's elements and stores them; it ends after ``size`` elements or with the
    source. Later epochs do not use the source. Use it to work on a part of a large dataset, or for a small
    dataset whose source is slow.

    The database is one file, which outlives the process. Several processes may use it at a time. Each worker
    fills its own part from its own part of the source; ``size`` limits all parts together. Another number of
    workers or ranks, or another seed, makes new parts with a ``size`` of their own.

    The stages before this one run as in epoch 0, in every epoch. If an epoch stops early, or its process is
    killed, the next one yields what is stored and continues with the source: no element is lost or repeated.
    A complete part never uses the source again. So delete the file, or change ``fingerprint``, to store other
    elements.

    Elements are stored without pickle: nested dicts, lists, tuples, arrays, tensors, numbers, strings and
    bytes.

    Args:
        path: The database; created if it is missing. The disk must be local.
        size: Elements to store.
        shuffle: Yield the elements of a complete part in random order, which depends on seed, epoch, rank and
            worker.
        fingerprint: Identifies what made the elements (the pipeline's ``repr``, a version). A database with
            another one is refused. Empty for no check.

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
    pins_epoch: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"DBCache: size must be at least 1, got {self.size}")

    def __str__(self) -> str:
        return (
            f"dbcache({arguments(os.fspath(self.path), self.size, **options(shuffle=(self.shuffle, False)))})"
        )

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        group = f"seed {context.seed or 0}, {context.world_size} rank(s), {context.workers} worker(s)"
        store = _SqliteStore(self, group, part_of(context))
        return Stored(source, store, self._order(store, context), self.size)

    def _order(self, store: _SqliteStore, context: Context) -> Sequence[int] | None:
        if not self.shuffle or not store.is_complete():
            return None
        order = list(range(store.count()))
        place = (context.seed or 0, context.moment, context.rank, context.worker, context.stage)
        random.Random("dbcache/" + "/".join(map(str, place))).shuffle(order)
        return order


_stores: weakref.WeakSet[_SqliteStore] = weakref.WeakSet()


class _SqliteStore(Store):
    """The elements of one part. The parts of a ``family`` share ``size``, of which each claims shares."""

    def __init__(self, stage: DBCache, family: str, part: str) -> None:
        self._path = os.path.abspath(stage.path)
        super().__init__(self._path, partial(element_to_bytes, "DBCache"), element_from_bytes, _ROWS)
        self._size = stage.size
        self._family = family
        self._lock = threading.RLock()  # a fork in another thread closes the connection
        self._connection: sqlite3.Connection | None = None
        _stores.add(self)
        with self._transaction() as connection:
            self._describe(connection, stage.fingerprint)
            connection.execute("INSERT OR IGNORE INTO part (name, family) VALUES (?, ?)", (part, family))
        self._part, self._claimed = self._fetched("SELECT id, claimed FROM part WHERE name = ?", part)
        self._committed, self._complete = self._read_count()

    def find(self, address: Address) -> int | None:
        query = "SELECT position FROM element WHERE part = ? AND address = ?"
        row = self._fetched(query, self._part, msgpack.packb(address))
        return None if row is None else int(row[0])

    def _read_count(self) -> tuple[int, bool]:
        query = (
            "SELECT (SELECT max(position) + 1 FROM element WHERE part = id), complete FROM part WHERE id = ?"
        )
        count, complete = self._fetched(query, self._part)
        return count or 0, bool(complete)

    def _read(self, position: int) -> tuple[Address, Any] | None:
        query = "SELECT address, data FROM element WHERE part = ? AND position = ?"
        row = self._fetched(query, self._part, position)
        return row and (as_address(msgpack.unpackb(row[0])), row[1])

    def _read_checkpoint(self, position: int) -> tuple[int, bytes | None]:
        query = "SELECT position, state FROM checkpoint WHERE part = ? AND position <= ?"
        return self._fetched(query + " ORDER BY position DESC LIMIT 1", self._part, position) or (0, None)

    def _write(self, rows: Rows, checkpoints: Checkpoints) -> None:
        packed = [(self._part, position, msgpack.packb(address), data) for position, address, data in rows]
        with self._transaction() as connection:
            connection.executemany("INSERT OR IGNORE INTO element VALUES (?, ?, ?, ?)", packed)
            connection.executemany(
                "INSERT OR IGNORE INTO checkpoint VALUES (?, ?, ?)",
                [(self._part, *row) for row in checkpoints],
            )

    def _write_complete(self, count: int) -> None:
        with self._transaction() as connection:
            connection.execute("UPDATE part SET complete = 1, claimed = ? WHERE id = ?", (count, self._part))

    def _delete(self) -> None:
        with self._transaction() as connection:
            connection.execute("DELETE FROM element WHERE part = ?", (self._part,))
            connection.execute("DELETE FROM checkpoint WHERE part = ?", (self._part,))
            connection.execute("UPDATE part SET claimed = 0, complete = 0 WHERE id = ?", (self._part,))
        self._claimed = 0

    def _has_room(self, position: int) -> bool:
        """Whether the part's claimed share has room; claims another if not."""
        if position < self._claimed:
            return True
        with self._transaction() as connection:
            query = "SELECT sum(claimed) FROM part WHERE family = ?"
            (taken,) = connection.execute(query, (self._family,)).fetchone()
            share = min(_CLAIM, self._size - taken)
            if share <= 0:
                return False
            self._claimed += share
            connection.execute("UPDATE part SET claimed = ? WHERE id = ?", (self._claimed, self._part))
        return True

    def disconnect(self) -> None:
        """Closes the connection; the next use opens another one."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _describe(self, connection: sqlite3.Connection, fingerprint: str) -> None:
        """Checks the description of the database; writes it into an empty one."""
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables == 0:
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {_FORMAT}")
            connection.execute("INSERT INTO meta VALUES (?)", (fingerprint,))
            return
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (format_,) = connection.execute("PRAGMA user_version").fetchone()
        if (application, format_) != (_APPLICATION, _FORMAT):
            raise ValueError(
                f"{self._path} is a database that was not made by this stage (or by another version of it): "
                "delete it, or give another path"
            )
        (made_of,) = connection.execute("SELECT fingerprint FROM meta").fetchone()
        self._check_fingerprint(made_of, fingerprint)

    def _fetched(self, query: str, *values: object) -> Any:
        """The first row of a result."""
        with self._connected() as connection:
            return connection.execute(query, values).fetchone()

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._connection is None:
                self._connection = self._connect()
            yield self._connection

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction; there is one at a time."""
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
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
        except sqlite3.DatabaseError as error:
            connection.close()
            raise ValueError(f"{self._path} cannot be used as a database: {error}") from error
        weakref.finalize(self, connection.close)
        return connection


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
