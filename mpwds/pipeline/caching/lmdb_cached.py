"""Keep a stream's elements in an LMDB database."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar

from mpwds.pipeline.caching.element_codec import ElementCodec, Pickler
from mpwds.pipeline.caching.lmdb_store import LmdbStore
from mpwds.pipeline.caching.stored import Stored, part_of
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.stream import Stream
from mpwds.storage.streams.secure import refuse_in_secure_mode


def lmdb_cached(
    fname: str | os.PathLike[str],
    map_size: float = 1e12,
    pickler: Pickler | None = None,
    chunksize: int = 500,
    fingerprint: str = "",
) -> LMDBCached:
    """Stage that keeps the elements in an LMDB database, and gives these from the second epoch on.

    Args:
        fname: The database's directory; made if it is missing.
        map_size: Bytes that it may have at most.
        pickler: How elements become bytes: ``pickle``, say, to be used with databases that you trust. By
            default a way without pickle, for nested dicts, lists, arrays, tensors, numbers, strings and
            bytes.
        chunksize: Elements written at a time.
        fingerprint: Says what the elements are made of; a database that has another one is refused.

    Raises:
        ValueError: ``chunksize`` is below 1, or ``map_size`` below 4096.
        ImportError: While iterating, the ``lmdb`` package is not installed: ``pip install 'mpwds[lmdb]'``.

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
    """Stage that keeps its source's elements in an LMDB database, and gives these from the second epoch on.

    The database stays when the process ends, and may be used by any number of processes at a time. Each
    worker has its own part of it, so all together have every element once. Another number of workers or
    ranks, or another seed, makes new parts: nothing is mixed up, but it takes its time and room again.

    What stands before the stage runs as in epoch 0, in every epoch. An epoch that is left early, or
    killed, leaves a part; the next one gives that, and goes on with the source. The last ``chunksize``
    elements may not have been written then: they are made again. A complete part is given without a look at
    the source. So delete the database, or change ``fingerprint``, when the elements are to be others.

    Elements that the source has no address for (from a plain generator stage) are stored as well.

    Args:
        fname: The database's directory; made if it is missing. The disk must be local.
        map_size: Bytes that it may have at most; they are not taken before they are needed.
        pickler: How elements become bytes; by default a way without pickle.
        chunksize: Elements written at a time.
        fingerprint: Says what the elements are made of (the pipeline's ``repr``, a version); a database that
            has another one is refused. Empty for no check.

    Raises:
        ValueError: ``chunksize`` is below 1, or ``map_size`` below 4096; while iterating, the database has
            another fingerprint, was made by another ``pickler``, or not by this stage.
        TypeError: While iterating, an element holds something that cannot be stored.
        MemoryError: While iterating, the database is full: more than ``map_size`` bytes.
        ImportError: While iterating, the ``lmdb`` package is not installed.
        SecurityError: While iterating, ``pickler`` is given and the secure mode is on (``WDS_SECURE=1``).

    Source:
        ``webdataset.filters.LMDBCached``.

    Example:
        >>> str(LMDBCached("samples.lmdb", chunksize=100))
        "lmdb_cached('samples.lmdb', chunksize=100)"
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
        codec = ElementCodec("lmdb_cached") if self.pickler is None else self.pickler
        store = LmdbStore(
            os.fspath(self.fname),
            int(self.map_size),
            codec,
            self.chunksize,
            self.fingerprint,
            part_of(context),
        )
        return Stored(source, store)
