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

from mpwds.pipeline.caching.store import Checkpoints, Rows, Store, element_from_bytes, element_to_bytes
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
        dumps = partial(element_to_bytes, stage) if pickler is None else pickler.dumps
        loads = element_from_bytes if pickler is None else pickler.loads
        super().__init__(path, dumps, loads, rows)
        self._part_name = part
        self._part = hashlib.blake2b(part.encode(), digest_size=8).digest()
        self._describe("mpwds" if pickler is None else "pickle", fingerprint)
        self._committed, self._complete = self._read_count()

    @abstractmethod
    def _begin(self, write: bool = False) -> AbstractContextManager[Transaction]:
        """A transaction. There is one at a time that writes."""

    def find(self, address: Address) -> int | None:
        packed = self._value(self._address_key(address))
        return None if packed is None else _NUMBER.unpack(packed)[0]

    def _read_count(self) -> tuple[int, bool]:
        return _counted(self._value(self._key(b"n")))

    def _read(self, position: int) -> tuple[Address, Any] | None:
        packed = self._value(self._key(b"e", position))
        if packed is None:
            return None
        address, data = msgpack.unpackb(packed)
        return as_address(address), data

    def _read_checkpoint(self, position: int) -> tuple[int, bytes | None]:
        with self._begin() as transaction:
            key, state = transaction.last(self._key(b"s", position)) or (b"", None)
        return (_NUMBER.unpack(key[-8:])[0], state) if key.startswith(self._key(b"s")) else (0, None)

    def _write(self, rows: Rows, checkpoints: Checkpoints) -> None:
        count = self._committed + len(rows)
        with self._begin(write=True) as transaction:
            if _counted(transaction.get(self._key(b"n")))[0] > count:
                return  # another process has stored the same elements, and more
            for position, address, data in rows:
                transaction.put(self._key(b"e", position), msgpack.packb((address, data)))
                transaction.put(self._address_key(address), _NUMBER.pack(position))
            for position, state in checkpoints:
                transaction.put(self._key(b"s", position), state)
            transaction.put(self._key(b"n"), msgpack.packb([count, False, self._part_name]))

    def _write_complete(self, count: int) -> None:
        with self._begin(write=True) as transaction:
            transaction.put(self._key(b"n"), msgpack.packb([count, True, self._part_name]))

    def _delete(self) -> None:
        with self._begin(write=True) as transaction:
            for letter in (b"e", b"a", b"s", b"n"):
                transaction.delete(self._key(letter))

    def _describe(self, codec: str, fingerprint: str) -> None:
        """Checks the description of the database; writes it into an empty one."""
        with self._begin(write=True) as transaction:
            packed = transaction.get(b"meta")
            if packed is None:
                if transaction.last(b"\xff" * 100) is not None:
                    raise ValueError(
                        f"{self._name} is a database that mpwds did not make (perhaps webdataset did): "
                        "delete it, or give another path"
                    )
                transaction.put(b"meta", msgpack.packb([_FORMAT, codec, fingerprint]))
                return
        format_, made_by, made_of = msgpack.unpackb(packed)
        if (format_, made_by) != (_FORMAT, codec):
            raise ValueError(
                f"the elements in {self._name} were stored with {made_by} (format {format_}), but would be "
                f"read with {codec} (format {_FORMAT}): pass the same pickler, or delete the database"
            )
        if fingerprint and made_of and fingerprint != made_of:
            raise ValueError(
                f"the elements in {self._name} were made by another pipeline: delete the database, or give "
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
