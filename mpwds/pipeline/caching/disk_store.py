"""Elements of streams on disk, in SQLite.

One file holds the parts of all workers, each with its elements, its count, and some states of its source.
SQLite was chosen over LMDB and over files of records because it needs no package, lets processes read while
one writes, and loses nothing of a transaction that a killed process had finished.

An element's row has a number of its own: the part's number times 2**40, plus the position. So an element is
found in one search, and a part is a range of numbers.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

import msgpack

from mpwds import nest, tenbin
from mpwds.imports import tensor_class
from mpwds.pipeline.error_context import add_note
from mpwds.pipeline.stream import Address, as_address

_POSITIONS = 1 << 40  # of one part
_PAGE_BYTES = 4096
_AHEAD = 16  # elements read at a time in order, ...
_SMALL_BYTES = 32 * 1024  # ... if the last one was small
_WAIT_S = 60.0
_PAUSE_S = 0.01
_TABLES = {
    "about": "(codec TEXT, fingerprint TEXT)",
    "parts": "(id INTEGER PRIMARY KEY, name TEXT UNIQUE, count INTEGER, complete INTEGER)",
    "elements": "(id INTEGER PRIMARY KEY, address BLOB, element BLOB)",
    "states": "(id INTEGER PRIMARY KEY, state BLOB)",
}
_stores: weakref.WeakSet[DiskStore] = weakref.WeakSet()


class ElementCodec(Protocol):
    """Converts an element to bytes and back: ``pickle``, or an object with these two functions."""

    def dumps(self, element: Any, /) -> bytes: ...

    def loads(self, data: bytes, /) -> Any: ...


class DiskStore:
    """The elements of the part of this name; its methods are those of ``Memory``.

    ``rows`` elements are written at a time. ``fingerprint`` identifies what made them; empty for no check.
    ``stage`` is the stage's name, for errors. Without a ``pickler``, elements are stored without pickle. The
    database may have ``size_bytes``, if these are given.
    """

    survives = True

    def __init__(
        self,
        path: str,
        stage: str,
        part: str,
        rows: int,
        fingerprint: str = "",
        pickler: ElementCodec | None = None,
        size_bytes: float | None = None,
    ) -> None:
        self._path = path
        self._dumps = partial(element_to_bytes, stage) if pickler is None else pickler.dumps
        self._loads = element_from_bytes if pickler is None else pickler.loads
        self._most_rows = rows
        self._size_bytes = size_bytes
        self._rows: list[tuple[int, bytes, bytes]] = []  # to be written
        self._states: list[tuple[int, bytes]] = []  # to be written
        self._ahead: list[tuple[int, bytes, bytes]] = []  # read already, the next one last
        self._next = 0  # position after the element that was read last
        self._are_small = False  # elements, so that some can be read at a time
        self._lock = threading.RLock()  # a fork in another thread closes the connection
        self._connection: sqlite3.Connection | None = None
        _stores.add(self)
        with self._writing() as database:
            self._describe(database, "mpwds" if pickler is None else "pickle", fingerprint)
            database.execute("INSERT OR IGNORE INTO parts (name, count, complete) VALUES (?, 0, 0)", (part,))
            (number,) = database.execute("SELECT id FROM parts WHERE name = ?", (part,)).fetchone()
        self._number = number
        self._first = number * _POSITIONS
        self._refresh()

    def count(self) -> int:
        if not self._rows:
            self._refresh()
        return self._committed + len(self._rows)

    def is_complete(self) -> bool:
        if not self._complete and not self._rows:
            self._refresh()
        return self._complete

    def get(self, position: int) -> tuple[Address, Any]:
        if self._rows and position >= self._committed:
            self._flush()
        first = self._first + position
        if not self._ahead or self._ahead[-1][0] != first:
            last = first + (_AHEAD - 1 if position == self._next and self._are_small else 0)
            query = "SELECT id, address, element FROM elements WHERE id BETWEEN ? AND ? ORDER BY id DESC"
            rows = self._select(query, first, last)
            if not rows or rows[-1][0] != first:
                raise LookupError(
                    f"{self._path} has no element {position} any more: something has removed it"
                )
            self._ahead = rows
        _, address, element = self._ahead.pop()
        self._next = position + 1
        self._are_small = len(element) < _SMALL_BYTES
        try:
            return as_address(msgpack.unpackb(address)), self._loads(element)
        except Exception as error:
            add_note(error, f"in element {position} of the database {self._path}")
            raise

    def find(self, address: Address) -> int | None:
        query = "SELECT id FROM elements WHERE address = ? AND id BETWEEN ? AND ?"
        row = self._find(query, msgpack.packb(address), self._first, self._first + _POSITIONS - 1)
        return None if row is None else row[0] - self._first

    def append(self, position: int, address: Address, element: Any) -> None:
        if position == self._committed + len(self._rows):
            self._rows.append((self._first + position, msgpack.packb(address), self._dumps(element)))
            if len(self._rows) >= self._most_rows:
                self._flush()

    def set_checkpoint(self, position: int, state: dict[str, Any]) -> None:
        self._states.append((self._first + position, msgpack.packb(state)))

    def checkpoint(self, position: int) -> tuple[int, dict[str, Any] | None]:
        self._flush()
        query = "SELECT id, state FROM states WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1"
        row = self._find(query, self._first, self._first + position)
        if row is None:
            return 0, None
        return row[0] - self._first, msgpack.unpackb(row[1], strict_map_key=False)

    def finish(self, count: int) -> None:
        self._flush()
        if self.count() == count:
            with self._writing() as database:
                database.execute("UPDATE parts SET complete = 1 WHERE id = ?", (self._number,))
            self._complete = True

    def clear(self) -> None:
        self._rows, self._states, self._ahead = [], [], []
        numbers = self._first, self._first + _POSITIONS - 1
        with self._writing() as database:
            database.execute("DELETE FROM elements WHERE id BETWEEN ? AND ?", numbers)
            database.execute("DELETE FROM states WHERE id BETWEEN ? AND ?", numbers)
            database.execute("UPDATE parts SET count = 0, complete = 0 WHERE id = ?", (self._number,))
        self._committed, self._complete = 0, False

    def disconnect(self) -> None:
        """Closes the connection; the next use opens another one."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _flush(self) -> None:
        if not self._rows and not self._states:
            return
        rows, self._rows = self._rows, []
        states, self._states = self._states, []
        count = self._committed + len(rows)
        with self._writing() as database:
            (stored,) = database.execute("SELECT count FROM parts WHERE id = ?", (self._number,)).fetchone()
            if stored <= count:  # otherwise another process has stored the same elements, and more
                database.executemany("INSERT OR REPLACE INTO elements VALUES (?, ?, ?)", rows)
                database.executemany("INSERT OR REPLACE INTO states VALUES (?, ?)", states)
                update = "UPDATE parts SET count = ?, complete = 0 WHERE id = ?"
                database.execute(update, (count, self._number))
        self._committed = count

    def _refresh(self) -> None:
        """Reads what other processes may have stored."""
        row = self._find("SELECT count, complete FROM parts WHERE id = ?", self._number)
        self._committed, self._complete = (0, False) if row is None else (row[0], bool(row[1]))

    def _describe(self, database: sqlite3.Connection, codec: str, fingerprint: str) -> None:
        """Checks the description of the database; writes it into an empty one."""
        row = database.execute("SELECT codec, fingerprint FROM about").fetchone()
        if row is None:
            database.execute("INSERT INTO about VALUES (?, ?)", (codec, fingerprint))
            return
        made_by, made_of = row
        if made_by != codec:
            raise ValueError(
                f"the elements in {self._path} were stored with {made_by}, but would be read with {codec}: "
                "pass the same pickler, or delete the database"
            )
        if fingerprint and fingerprint != made_of:
            raise ValueError(
                f"the elements in {self._path} were made by another pipeline: delete the database, or give "
                f"another path\n  there: {made_of or 'no fingerprint'}\n  here:  {fingerprint}"
            )

    def _find(self, query: str, *values: Any) -> Any:
        """The first row of a query's result."""
        return next(iter(self._select(query, *values)), None)

    def _select(self, query: str, *values: Any) -> list[Any]:
        with self._lock, self._named_errors():
            return (self._connection or self._connect()).execute(query, values).fetchall()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that writes; there is one at a time."""
        with self._lock, self._named_errors():
            connection = self._connection or self._connect()
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                yield connection

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Turns errors of SQLite, which name no file, into others."""
        try:
            yield
        except sqlite3.OperationalError as error:  # of the disk, or of locks
            if "is full" in str(error):
                raise self._full() from error
            raise OSError(f"the database {self._path} cannot be used: {error}") from error
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{self._path} cannot be used as a database: {error}") from error

    def _full(self) -> Exception:
        room = shutil.disk_usage(os.path.dirname(self._path)).free + os.path.getsize(self._path)
        if self._size_bytes is None or room < self._size_bytes:
            return OSError(f"{self._path} cannot be written: the disk is full")
        return MemoryError(
            f"{self._path} is full: it has map_size={int(self._size_bytes)} bytes; give a larger one"
        )

    def _connect(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                self._path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
            )
        except sqlite3.OperationalError as error:
            raise OSError(f"the database {self._path} cannot be opened: {error}") from error
        try:
            _use_write_ahead_log(connection)
            self._create_tables(connection)
            if self._size_bytes is not None:
                pages = min(int(self._size_bytes) // _PAGE_BYTES, (1 << 32) - 2)
                connection.execute(f"PRAGMA max_page_count = {pages}")
        except BaseException:
            connection.close()
            raise
        weakref.finalize(self, connection.close)
        self._connection = connection
        return connection

    def _create_tables(self, connection: sqlite3.Connection) -> None:
        """Creates the tables in an empty database; raises ``ValueError`` for one of another program."""
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            names = {name for (name,) in tables}
            if not names:
                for name, columns in _TABLES.items():
                    connection.execute(f"CREATE TABLE {name} {columns}")
                connection.execute("CREATE INDEX addresses ON elements (address)")
            elif names != set(_TABLES):
                raise ValueError(
                    f"{self._path} is a database that was not made by this stage (or by another version of "
                    "it): delete it, or give another path"
                )


def element_to_bytes(stage: str, element: Any) -> bytes:
    """Nested dicts, lists, tuples, arrays, tensors, numbers, strings and bytes, without pickle.

    Raises ``TypeError`` if the element holds something else, which the message names.
    """
    try:
        structure, arrays = nest.flatten(element)
    except TypeError as error:
        where, _, _ = str(error).partition(", ")  # the rest is advice for senders
        raise TypeError(
            f"{stage}: an element cannot be stored: in it, {where}, which would need a "
            "pickle; move the stage before the one that makes such objects, convert them to arrays, "
            "numbers or text, or drop them"
        ) from error
    tensors = [isinstance(array, tensor_class()) for array in arrays]
    encoded = [tenbin.encode_buffer([array]) for array in arrays]
    return nest.pack({"structure": structure, "arrays": encoded, "tensors": tensors})


def element_from_bytes(data: bytes) -> Any:
    """The element again, its arrays and tensors writable. Raises ``EnvelopeError`` for other bytes."""
    fields = nest.unpack(data)
    arrays = [
        tenbin.decode_buffer(bytearray(encoded), output="torch" if is_tensor else "numpy")[0]
        for encoded, is_tensor in zip(fields["arrays"], fields["tensors"], strict=True)
    ]
    return nest.unflatten(fields["structure"], arrays)


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
