"""Keep a stream's elements in a database of keys and values.

Keys are a letter, the digest of the part's name, and a big-endian number or digest: ``e`` elements by
position, ``a`` positions by address, ``s`` states of the source by position, ``n`` the part's count.
``meta`` describes the database.
"""

from __future__ import annotations

import hashlib
import struct
from abc import abstractmethod
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

import msgpack

from mpwds.pipeline.caching.store import Store, element_from_bytes, element_to_bytes
from mpwds.pipeline.stream import Address, as_address

_FORMAT = 1
_NUMBER = struct.Struct(">Q")


class Pickler(Protocol):
    """Converts an element to bytes and back: ``pickle``, or an object with these two functions."""

    def dumps(self, element: Any, /) -> bytes: ...

    def loads(self, data: bytes, /) -> Any: ...


class Transaction(Protocol):
    """What a :class:`DatabaseStore` does in a transaction."""

    def get(self, key: bytes) -> bytes | None: ...

    def put(self, key: bytes, value: bytes) -> object: ...

    def last(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The last item up to ``key``."""

    def delete(self, prefix: bytes) -> None:
        """Deletes all keys that begin so."""


class DatabaseStore(Store):
    """The elements of one part in a database. A subclass opens the database and makes transactions."""

    def __init__(
        self, path: str, stage: str, part: str, rows: int, fingerprint: str, pickler: Pickler | None = None
    ) -> None:
        self._path = path
        self._dumps = partial(element_to_bytes, stage) if pickler is None else pickler.dumps
        self._loads = element_from_bytes if pickler is None else pickler.loads
        self._name = part
        self._part = hashlib.blake2b(part.encode(), digest_size=8).digest()
        self._most_rows = rows
        self._rows: list[tuple[int, Address, bytes]] = []  # to be written
        self._checkpoints: list[tuple[int, bytes]] = []  # to be written
        self._describe("mpwds" if pickler is None else "pickle", fingerprint)
        self._refresh()

    @abstractmethod
    def _begin(self, write: bool = False) -> AbstractContextManager[Transaction]:
        """A transaction. There is one at a time that writes."""

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
        packed = self._value(self._key(b"e", position))
        if packed is None:
            raise LookupError(f"{self._path} has no element {position} any more: something has removed it")
        address, data = msgpack.unpackb(packed)
        return as_address(address), self._loads(data)

    def find(self, address: Address) -> int | None:
        packed = self._value(self._address_key(address))
        return None if packed is None else _NUMBER.unpack(packed)[0]

    def append(self, position: int, address: Address, element: Any) -> None:
        if position == self._committed + len(self._rows):
            self._rows.append((position, address, self._dumps(element)))
            if len(self._rows) >= self._most_rows:
                self._flush()

    def set_checkpoint(self, position: int, state: dict[str, Any]) -> None:
        self._checkpoints.append((position, msgpack.packb(state)))

    def checkpoint(self, position: int) -> tuple[int, dict[str, Any] | None]:
        self._flush()
        with self._begin() as transaction:
            key, packed = transaction.last(self._key(b"s", position)) or (b"", b"")
        if not key.startswith(self._key(b"s")):
            return 0, None
        return _NUMBER.unpack(key[-8:])[0], msgpack.unpackb(packed, strict_map_key=False)

    def finish(self, count: int) -> None:
        self._flush()
        if self.count() == count:
            with self._begin(write=True) as transaction:
                self._put_count(transaction, count, True)
            self._complete = True

    def clear(self) -> None:
        self._rows, self._checkpoints = [], []
        with self._begin(write=True) as transaction:
            for letter in (b"e", b"a", b"s", b"n"):
                transaction.delete(self._key(letter))
        self._committed, self._complete = 0, False

    def _flush(self) -> None:
        if not self._rows and not self._checkpoints:
            return
        rows, self._rows = self._rows, []
        checkpoints, self._checkpoints = self._checkpoints, []
        count = self._committed + len(rows)
        with self._begin(write=True) as transaction:
            stored, _ = _counted(transaction.get(self._key(b"n")))
            if stored <= count:  # otherwise another process has stored the same elements, and more
                for position, address, data in rows:
                    transaction.put(self._key(b"e", position), msgpack.packb((address, data)))
                    transaction.put(self._address_key(address), _NUMBER.pack(position))
                for position, state in checkpoints:
                    transaction.put(self._key(b"s", position), state)
                self._put_count(transaction, count, False)
        self._committed = count

    def _put_count(self, transaction: Transaction, count: int, complete: bool) -> None:
        transaction.put(self._key(b"n"), msgpack.packb([count, complete, self._name]))

    def _refresh(self) -> None:
        """Reads what other processes may have stored."""
        self._committed, self._complete = _counted(self._value(self._key(b"n")))

    def _describe(self, codec: str, fingerprint: str) -> None:
        """Checks the description of the database; writes it into an empty one."""
        with self._begin(write=True) as transaction:
            packed = transaction.get(b"meta")
            if packed is None:
                if transaction.last(b"\xff" * 100) is not None:
                    raise ValueError(
                        f"{self._path} is a database that mpwds did not make (perhaps webdataset did): "
                        "delete it, or give another path"
                    )
                transaction.put(b"meta", msgpack.packb([_FORMAT, codec, fingerprint]))
                return
        format_, made_by, made_of = msgpack.unpackb(packed)
        if (format_, made_by) != (_FORMAT, codec):
            raise ValueError(
                f"the elements in {self._path} were stored with {made_by} (format {format_}), but would be "
                f"read with {codec} (format {_FORMAT}): pass the same pickler, or delete the database"
            )
        if fingerprint and made_of and fingerprint != made_of:
            raise ValueError(
                f"the elements in {self._path} were made by another pipeline: delete the database, or give "
                f"another path\n  there: {made_of}\n  here:  {fingerprint}"
            )

    def _value(self, key: bytes) -> bytes | None:
        with self._begin() as transaction:
            return transaction.get(key)

    def _key(self, letter: bytes, position: int | None = None) -> bytes:
        return letter + self._part + (b"" if position is None else _NUMBER.pack(position))

    def _address_key(self, address: Address) -> bytes:
        return b"a" + self._part + hashlib.blake2b(msgpack.packb(address), digest_size=16).digest()


def _counted(packed: bytes | None) -> tuple[int, bool]:
    if packed is None:
        return 0, False
    count, complete, _ = msgpack.unpackb(packed)
    return count, complete
