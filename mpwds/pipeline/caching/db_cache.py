"""Keep the first elements of a stream in an SQLite database."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mpwds.pipeline.caching.element_codec import ElementCodec
from mpwds.pipeline.caching.sqlite_store import SqliteStore
from mpwds.pipeline.caching.stored import Stored, part_of
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.stream import Stream


@dataclass(frozen=True)
class DBCache(Filter):
    """Stage that keeps up to ``size`` elements of its source in an SQLite database, and gives only these.

    The first epoch gives the source's elements and stores them, and ends when there are ``size``, or
    none are left. Later epochs do not touch the source. For work on a part of a large dataset, or for all of
    a small one whose source is slow.

    The database is one file, which stays when the process ends, and which any number of processes may use at
    a time. Each worker has its own part of it, filled from its own part of the source; ``size`` counts all
    of them together, in the order in which they come. Another number of workers or ranks, or another seed,
    makes new parts, with a ``size`` of their own.

    What stands before the stage runs as in epoch 0, in every epoch. An epoch that is left early, or killed,
    leaves what it has stored, and the next one gives that and goes on with the source: nothing is lost, and
    no element comes twice. A complete part is given without a look at the source. So delete the file, or
    change ``fingerprint``, when the elements are to be others.

    Elements are stored without pickle: nested dicts, lists, tuples, arrays, tensors, numbers, strings and
    bytes.

    Args:
        path: The database; made if it is missing. The disk must be local.
        size: Elements to keep.
        shuffle: Give the elements of a complete part in random order, another one in every epoch; determined
            by seed, epoch, rank and worker.
        fingerprint: Says what the elements are made of (the pipeline's ``repr``, a version); a database that
            has another one is refused. Empty for no check.

    Raises:
        ValueError: ``size`` is below 1; while iterating, the file has another fingerprint, or is none of
            this stage.
        TypeError: While iterating, an element holds something that cannot be stored.
        LookupError: A state is loaded that was saved when the part was complete, and it is not any more.

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
        codec = ElementCodec("DBCache")
        store = SqliteStore(os.fspath(self.path), self.size, codec, self.fingerprint, group, part_of(context))
        return Stored(source, store, self._order(store, context), self.size)

    def _order(self, store: SqliteStore, context: Context) -> Sequence[int] | None:
        if not self.shuffle or not store.is_complete():
            return None
        order = list(range(store.count()))
        place = (context.seed or 0, context.moment, context.rank, context.worker, context.stage)
        random.Random("dbcache/" + "/".join(map(str, place))).shuffle(order)
        return order
