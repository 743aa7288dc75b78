"""Keep a stream's elements in an LMDB database.

Keys are a letter, the digest of the part's name, and a big-endian number or digest: ``e`` elements by
position, ``a`` positions by address, ``s`` states of the source by position, ``n`` the part's count.
``meta`` describes the database.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import msgpack

from mpwds.pipeline.caching.store import Checkpoints, Rows, Store, element_from_bytes, element_to_bytes
from mpwds.pipeline.caching.stored import Stored, part_of
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.stream import Address, Stream, as_address
from mpwds.storage.streams.secure import refuse_in_secure_mode

_FORMAT = 1
_READERS = 1024  # at a time; LMDB's own default of 126 is less than some machines have workers
_NUMBER = struct.Struct(">Q")


class Pickler(Protocol):
    """Converts an element to bytes and back: ``pickle``, or an object with these two functions."""

    def dumps(self, element: Any, /) -> bytes: ...

    def loads(self, data: bytes, /) -> Any: ...


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


class _LmdbStore(Store):
    """The elements of one part."""

    def __init__(self, stage: LMDBCached, part: str) -> None:
        self._path, pickler = os.path.abspath(stage.fname), stage.pickler
        dumps = partial(element_to_bytes, "lmdb_cached") if pickler is None else pickler.dumps
        loads = element_from_bytes if pickler is None else pickler.loads
        super().__init__(self._path, dumps, loads, stage.chunksize)
        self._map_size = int(stage.map_size)
        self._part_name = part
        self._part = hashlib.blake2b(part.encode(), digest_size=8).digest()
        self._real_path = os.path.realpath(self._path)
        self._environment = self._opened()
        self._describe("mpwds" if stage.pickler is None else "pickle", stage.fingerprint)
        self._committed, self._complete = self._read_count()

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
        with self._opened().handle.begin() as transaction:
            cursor = transaction.cursor()
            found = cursor.set_range(self._key(b"s", position + 1))
            if (cursor.prev() if found else cursor.last()) and cursor.key().startswith(b"s" + self._part):
                return _NUMBER.unpack(cursor.key()[-8:])[0], cursor.value()
        return 0, None

    def _write(self, rows: Rows, checkpoints: Checkpoints) -> None:
        count = self._committed + len(rows)
        with self._writing() as transaction:
            if _counted(transaction.get(self._key(b"n")))[0] > count:
                return  # another process has stored the same elements, and more
            for position, address, data in rows:
                transaction.put(self._key(b"e", position), msgpack.packb((address, data)))
                transaction.put(self._address_key(address), _NUMBER.pack(position))
            for position, state in checkpoints:
                transaction.put(self._key(b"s", position), state)
            transaction.put(self._key(b"n"), msgpack.packb([count, False, self._part_name]))

    def _write_complete(self, count: int) -> None:
        with self._writing() as transaction:
            transaction.put(self._key(b"n"), msgpack.packb([count, True, self._part_name]))

    def _delete(self) -> None:
        with self._writing() as transaction:
            for letter in (b"e", b"a", b"s", b"n"):
                cursor = transaction.cursor()
                prefix = letter + self._part
                more = cursor.set_range(prefix)
                while more and cursor.key().startswith(prefix):
                    more = cursor.delete()

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
        self._check_fingerprint(made_of, fingerprint)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Any]:
        environment = self._opened()
        try:
            with environment.handle.begin(write=True) as transaction:
                yield transaction
        except environment.full as error:
            raise MemoryError(
                f"{self._path} is full: it has map_size={environment.map_size} bytes; give a larger one"
            ) from error

    def _value(self, key: bytes) -> Any:
        with self._opened().handle.begin() as transaction:
            return transaction.get(key)

    def _opened(self) -> _Environment:
        """The environment; another one in a fork, which must not use that of its parent."""
        self._environment = _environment(self._real_path, self._map_size)
        return self._environment

    def _key(self, letter: bytes, position: int | None = None) -> bytes:
        return letter + self._part + (b"" if position is None else _NUMBER.pack(position))

    def _address_key(self, address: Address) -> bytes:
        return b"a" + self._part + hashlib.blake2b(msgpack.packb(address), digest_size=16).digest()


def _counted(packed: bytes | None) -> tuple[int, bool]:
    if packed is None:
        return 0, False
    count, complete, _ = msgpack.unpackb(packed)
    return count, complete


def _close_in_child() -> None:
    for environment in list(_environments.values()):
        environment.handle.close()
    _environments.clear()


os.register_at_fork(after_in_child=_close_in_child)
