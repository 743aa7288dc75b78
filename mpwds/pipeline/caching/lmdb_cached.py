"""Keep a stream's elements in an LMDB database.

Keys are a letter, the digest of the part's name, and a big-endian number or digest: ``e`` elements by
position, ``a`` positions by address, ``s`` states of the source by position, ``n`` the part's count.
``meta`` describes the database.
"""

from __future__ import annotations

import hashlib
import os
import struct
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgpack

from mpwds.pipeline.caching.stored import ElementCodec, Pickler, Stored, part_of
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.stream import Address, Stream, as_address
from mpwds.storage.streams.urls import refuse_in_secure_mode

_FORMAT = 1
_READERS = 1024  # at a time; LMDB's own default of 126 is less than some machines have workers
_NUMBER = struct.Struct(">Q")


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
    makes new parts, which take time and space again.

    The stages before this one run as in epoch 0, in every epoch. If an epoch stops early, or its process is
    killed, the next one yields what is stored and continues with the source. A kill may lose the last
    ``chunksize`` elements; the source makes them again. A complete part never uses the source again. So
    delete the database, or change ``fingerprint``, to store other elements.

    Elements without addresses (from a plain generator stage) are stored as well.

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
    """The stage that ``lmdb_cached`` makes, by webdataset's name.

    Source:
        ``webdataset.filters.LMDBCached``.
    """

    fname: str | os.PathLike[str]
    map_size: float = 1e12
    pickler: Pickler | None = None
    chunksize: int = 500
    fingerprint: str = ""
    pins_epoch: ClassVar[bool] = True

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
    """An open database; LMDB allows one per process and directory."""

    def __init__(self, path: str, map_size: int) -> None:
        try:
            import lmdb
        except ImportError as error:
            raise ImportError("lmdb_cached needs the lmdb package: pip install 'mpwds[lmdb]'") from error
        self.full = lmdb.MapFullError
        self.path = path
        self.map_size = map_size
        self.handle = lmdb.open(path, map_size=map_size, max_readers=_READERS)
        weakref.finalize(self, self.handle.close)

    @staticmethod
    def of(path: str, map_size: int) -> _Environment:
        """The environment of a directory."""
        path = os.path.realpath(path)
        environment = _environments.get(path)
        if environment is None:
            environment = _environments[path] = _Environment(path, map_size)
        return environment


class _LmdbStore:
    """The elements of one part, a :class:`~mpwds.pipeline.caching.stored.Store`."""

    survives = True

    def __init__(self, stage: LMDBCached, part: str) -> None:
        self._path, self._map_size = os.path.abspath(stage.fname), int(stage.map_size)
        self._codec = ElementCodec("lmdb_cached") if stage.pickler is None else stage.pickler
        self._chunksize = stage.chunksize
        self._name = part
        self._part = hashlib.blake2b(part.encode(), digest_size=8).digest()
        self._chunk: list[tuple[bytes, bytes]] = []
        self._chunk_elements = 0
        self._environment = _Environment.of(self._path, self._map_size)
        self._describe("mpwds" if stage.pickler is None else "pickle", stage.fingerprint)
        self._committed, self._complete = self._read_count()

    def count(self) -> int:
        if not self._chunk:
            self._committed, self._complete = self._read_count()
        return self._committed + self._chunk_elements

    def is_complete(self) -> bool:
        if not self._complete:
            self._committed, self._complete = self._read_count()
        return self._complete

    def get(self, position: int) -> tuple[Address, Any]:
        self._flush(beyond=position)
        packed = self._read(self._key(b"e", position))
        if packed is None:
            raise LookupError(f"{self._path} has no element {position} any more: something has removed it")
        address, data = msgpack.unpackb(packed)
        return as_address(address), self._codec.loads(data)

    def find(self, address: Address) -> int | None:
        packed = self._read(self._address_key(address))
        return None if packed is None else _NUMBER.unpack(packed)[0]

    def append(self, position: int, address: Address, element: Any) -> bool:
        if position == self._committed + self._chunk_elements:
            item = msgpack.packb((address, self._codec.dumps(element)))
            self._chunk.append((self._key(b"e", position), item))
            self._chunk.append((self._address_key(address), _NUMBER.pack(position)))
            self._chunk_elements += 1
            if self._chunk_elements >= self._chunksize:
                self._flush()
        return True

    def set_checkpoint(self, position: int, state: bytes) -> None:
        self._chunk.append((self._key(b"s", position), state))

    def checkpoint(self, position: int) -> tuple[int, bytes | None]:
        self._flush()
        with self._reopened().handle.begin() as transaction:
            cursor = transaction.cursor()
            found = cursor.set_range(self._key(b"s", position + 1))
            if (cursor.prev() if found else cursor.last()) and cursor.key().startswith(b"s" + self._part):
                return _NUMBER.unpack(cursor.key()[-8:])[0], cursor.value()
        return 0, None

    def finish(self, count: int) -> None:
        self._flush()
        if self.count() == count:
            self._write([(self._key(b"n"), msgpack.packb([count, True, self._name]))])
            self._complete = True

    def clear(self) -> None:
        self._chunk, self._chunk_elements = [], 0
        with self._reopened().handle.begin(write=True) as transaction:
            for letter in (b"e", b"a", b"s", b"n"):
                cursor = transaction.cursor()
                prefix = letter + self._part
                more = cursor.set_range(prefix)
                while more and cursor.key().startswith(prefix):
                    more = cursor.delete()
        self._committed, self._complete = 0, False

    def _describe(self, codec: str, fingerprint: str) -> None:
        """Checks the description of the database; writes it into an empty one."""
        with self._environment.handle.begin(write=True) as transaction:
            packed = transaction.get(b"meta")
            if packed is None:
                if transaction.stat()["entries"] > 0:
                    raise ValueError(
                        f"{self._path} is an LMDB database that mpwds did not make (perhaps webdataset did): "
                        "delete it, or give another directory"
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
                f"another directory\n  there: {made_of}\n  here:  {fingerprint}"
            )

    def _read_count(self) -> tuple[int, bool]:
        return self._counted(self._read(self._key(b"n")))

    def _counted(self, packed: bytes | None) -> tuple[int, bool]:
        if packed is None:
            return 0, False
        count, complete, _ = msgpack.unpackb(packed)
        return count, complete

    def _flush(self, beyond: int | None = None) -> None:
        """Writes the chunk; with ``beyond``, only if the element at that position is in it."""
        if not self._chunk or (beyond is not None and beyond < self._committed):
            return
        chunk, self._chunk = self._chunk, []
        count = self._committed + self._chunk_elements
        self._chunk_elements = 0
        self._write([*chunk, (self._key(b"n"), msgpack.packb([count, False, self._name]))], count)
        self._committed = count

    def _write(self, items: Sequence[tuple[bytes, bytes]], count: int | None = None) -> None:
        environment = self._reopened()
        try:
            with environment.handle.begin(write=True) as transaction:
                if count is not None and self._counted(transaction.get(self._key(b"n")))[0] > count:
                    return  # another process has stored the same elements, and more
                for key, value in items:
                    transaction.put(key, value)
        except environment.full as error:
            raise MemoryError(
                f"{self._path} is full: it has map_size={environment.map_size} bytes; give a larger one"
            ) from error

    def _read(self, key: bytes) -> Any:
        with self._reopened().handle.begin() as transaction:
            return transaction.get(key)

    def _reopened(self) -> _Environment:
        """The environment; reopened in a fork, which must not use that of its parent."""
        if _environments.get(self._environment.path) is not self._environment:
            self._environment = _Environment.of(self._path, self._map_size)
        return self._environment

    def _key(self, letter: bytes, position: int | None = None) -> bytes:
        return letter + self._part + (b"" if position is None else _NUMBER.pack(position))

    def _address_key(self, address: Address) -> bytes:
        return b"a" + self._part + hashlib.blake2b(msgpack.packb(address), digest_size=16).digest()


def _close_in_child() -> None:
    for environment in list(_environments.values()):
        environment.handle.close()
    _environments.clear()


os.register_at_fork(after_in_child=_close_in_child)
