"""Stages that keep elements, in memory and on disk, and the stream of them all."""

from __future__ import annotations

import contextlib
import copy
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.error_context import arguments, changed
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.randomness import generator_states, restore_rng
from mpwds.pipeline.stream import Address, Stream, WrappedStream, as_address
from mpwds.storage.streams.urls import refuse_in_secure_mode
from mpwds.warn import warn

if TYPE_CHECKING:  # a cache in memory needs no sqlite3
    from mpwds.pipeline.caching.disk_store import DiskStore, ElementCodec

_ROWS = 16  # written at a time by DBCache: what a process that is killed may lose
_CHECKPOINT_EVERY = 100  # elements between two states of the source that are stored
_IMMUTABLE = {bool, int, float, complex, str, bytes, type(None)}


def mcached() -> Cached:
    """Stage that keeps its source's elements in memory, and yields these from the second epoch on.

    Put it after stages that are slow and the same in every epoch (``decode``), and before those that are not
    (``shuffle``, random augmentation). The stages before it run as in epoch 0, in every epoch. If an epoch
    stops early, the next one yields what is stored and continues with the source.

    The memory belongs to the stage object in each process: a worker keeps its own part as long as it lives
    (workers of ``MultiLoader`` do; those of torch's ``DataLoader`` with ``persistent_workers=True``). It is
    not pickled. Elements are copied, so a later stage may change them. The source must be finite: resampled
    shards never complete it.

    Example:
        >>> cached = mcached()
        >>> list(cached("ab")), list(cached("cd"))
        (['a', 'b'], ['a', 'b'])
    """
    return Cached()


@dataclass(frozen=True)
class Cached(Filter):
    """The stage that ``mcached`` makes, by webdataset's name (``webdataset.filters.Cached``)."""

    pins_epoch = True
    _parts: _Memories = field(default_factory=lambda: _Memories(), repr=False, compare=False)

    def __str__(self) -> str:
        return "mcached()"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return Stored(source, self._parts[part_of(context)])


def lmdb_cached(
    fname: str | os.PathLike[str],
    map_size: float = 1e12,
    pickler: ElementCodec | None = None,
    chunksize: int = 500,
    fingerprint: str = "",
) -> LMDBCached:
    """Stage that stores its source's elements in a database, and yields these from the second epoch on.

    The database outlives the process, and several processes may use it at a time. It is SQLite's: the name is
    webdataset's, which uses LMDB. Each worker has its own part, so the parts together hold every element
    once. Another number of workers or ranks, or another seed, makes new parts.

    The stages before this one run as in epoch 0, in every epoch. If an epoch stops early, or its process is
    killed, the next one yields what is stored and continues with the source, which makes the elements again
    that were not written yet. A complete part never uses the source again. So delete the database to store
    other elements.

    Args:
        fname: The database's directory; created if it is missing. The disk must be local.
        map_size: The database's largest size in bytes; disk space is used only as elements come.
        pickler: Converts elements to bytes and back, such as ``pickle`` for databases that you trust. By
            default nested dicts, lists, arrays, tensors, numbers, strings and bytes are stored without
            pickle.
        chunksize: Elements written at a time.
        fingerprint: Identifies what made the elements (the pipeline's ``repr``, a version). A database with
            another one, or with none, is refused. Empty for no check.

    Raises:
        ValueError: ``chunksize`` is below 1, or ``map_size`` below 4096; while iterating, the database has
            another fingerprint, was made by another ``pickler``, or not by this stage (by LMDB, say).
        TypeError: While iterating, an element holds something that cannot be stored.
        MemoryError: While iterating, the database is full: more than ``map_size`` bytes.
        OSError: While iterating, the database cannot be read or written: the disk is full, for example.
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
    pickler: ElementCodec | None = None
    chunksize: int = 500
    fingerprint: str = ""
    pins_epoch = True

    def __post_init__(self) -> None:
        if self.chunksize < 1:
            raise ValueError(f"lmdb_cached: chunksize must be at least 1, got {self.chunksize}")
        if self.map_size < 4096:
            raise ValueError(f"lmdb_cached: map_size must be at least 4096 bytes, got {self.map_size}")

    def __str__(self) -> str:
        given = changed(self, "map_size", "pickler", "chunksize")
        if isinstance(self.pickler, ModuleType):
            given["pickler"] = self.pickler.__name__
        return f"lmdb_cached({arguments(os.fspath(self.fname), **given)})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        if self.pickler is not None:
            refuse_in_secure_mode("lmdb_cached takes no pickler, whose loads() may run what a database holds")
        folder = os.path.realpath(self.fname)
        if os.path.exists(os.path.join(folder, "data.mdb")):
            raise ValueError(
                f"{folder} is an LMDB database that mpwds did not make: delete it, or give another path"
            )
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "elements.db")
        given = self.chunksize, self.fingerprint, self.pickler, self.map_size
        from mpwds.pipeline.caching.disk_store import DiskStore

        return Stored(source, DiskStore(path, "lmdb_cached", part_of(context), *given))


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
        return f"dbcache({arguments(os.fspath(self.path), self.size, **changed(self, 'shuffle'))})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        path = os.path.abspath(self.path)
        from mpwds.pipeline.caching.disk_store import DiskStore

        store = DiskStore(path, "DBCache", part_of(context), _ROWS, self.fingerprint)
        parts = context.world_size * context.workers
        before = context.rank * context.workers + context.worker
        share = self.size * (before + 1) // parts - self.size * before // parts
        return Stored(source, store, self._order(store, context), share)

    def _order(self, store: DiskStore, context: Context) -> Sequence[int] | None:
        if not self.shuffle or not store.is_complete():
            return None
        order = list(range(store.count()))
        place = (context.seed or 0, context.moment, context.rank, context.worker, context.stage)
        random.Random("dbcache/" + "/".join(map(str, place))).shuffle(order)
        return order


class _Memories(dict[str, "Memory"]):
    """The memories of a stage's streams, by part. Copies of the stage, and pickles, are empty."""

    def __missing__(self, part: str) -> Memory:
        return self.setdefault(part, Memory())

    def __reduce__(self) -> tuple[type[_Memories], tuple[()]]:
        return _Memories, ()


def part_of(context: Context) -> str:
    """Names the elements of one stream, by seed, rank and worker."""
    rank, worker = f"{context.rank} of {context.world_size}", f"{context.worker} of {context.workers}"
    return f"seed {context.seed or 0}, rank {rank}, worker {worker}"


class Memory:
    """The first elements of a stream, in order, and some states of its source.

    ``DiskStore`` has the same methods.
    """

    survives = False  # whether it outlives the process

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Removes everything."""
        self._elements: list[tuple[Address, Any]] = []
        self._positions: dict[Address, int] = {}
        self._states: dict[int, dict[str, Any]] = {}
        self._complete = False

    def count(self) -> int:
        """The number of elements that it has."""
        return len(self._elements)

    def is_complete(self) -> bool:
        """True if these are all."""
        return self._complete

    def get(self, position: int) -> tuple[Address, Any]:
        """The address of the element at a position, and the element, which the caller may change."""
        address, element = self._elements[position]
        return address, copied(element)

    def find(self, address: Address) -> int | None:
        """The position of the element with that address, if it is there."""
        return self._positions.get(address)

    def append(self, position: int, address: Address, element: Any) -> None:
        """Stores the element at ``position`` unless it is there."""
        if position == len(self._elements):
            self._elements.append((address, copied(element)))
            self._positions[address] = position

    def set_checkpoint(self, position: int, state: dict[str, Any]) -> None:
        """Stores the source's state before the element at ``position``."""
        self._states[position] = copied(state)

    def checkpoint(self, position: int) -> tuple[int, dict[str, Any] | None]:
        """Position and state of the last checkpoint at or before a position; else ``(0, None)``."""
        at = max((at for at in self._states if at <= position), default=0)
        return at, copied(self._states.get(at))

    def finish(self, count: int) -> None:
        """Marks the store complete if it has ``count`` elements."""
        self._complete = count == len(self._elements)


def copied(element: Any) -> Any:
    """A copy of an element that shares no mutable object with it."""
    kind = type(element)
    if kind in _IMMUTABLE:
        return element
    if kind is dict:
        return {key: copied(value) for key, value in element.items()}
    if kind is list:
        return [copied(value) for value in element]
    if kind is tuple:
        return tuple([copied(value) for value in element])
    return copy.deepcopy(element)


class Stored(WrappedStream[Any]):
    """Elements from a store; after its last one those of the source, which are added to the store.

    An interrupted epoch leaves the store incomplete. The next one yields what is stored and continues with
    the source, provided that the source still has the last stored element in its place. Otherwise it empties
    the store, with a warning. If the source fails on an element, neither that element nor any later one is
    stored: the next epoch tries it again. ``order`` are positions in a complete store; at ``limit`` the
    stream ends at the latest.
    """

    def __init__(
        self,
        source: Stream[Any],
        store: Memory | DiskStore,
        order: Sequence[int] | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__(source)
        self._store = store
        self._order = order
        self._limit = limit
        self._position = 0  # elements yielded
        self._drawn = 0  # elements taken from the source
        self._stored = store.count()
        self._keeps = True  # elements are added to the store
        self._checked = self._stored == 0 or store.is_complete()

    def __next__(self) -> tuple[Address, Any]:
        position = self._position
        if self._order is not None:
            if position >= len(self._order):
                raise StopIteration
            item = self._store.get(self._order[position])
        elif self._is_stored(position):
            item = self._store.get(position)
        else:
            item = self._draw_at(position)
        self._position = position + 1
        return item

    def fetch(self, address: Any) -> Any:
        position = self._store.find(as_address(address))
        return self._source.fetch(address) if position is None else self._store.get(position)[1]

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"position": self._position}
        if self._order is not None:
            return {**state, "stored": len(self._order)}
        if not self._keeps:
            return {**state, "drawn": self._drawn, "source": self._source.state_dict()}
        if self._store.survives:
            return state
        if self._position == self._drawn:
            return {**state, "checkpoint": [self._position, self._source.state_dict()]}
        return {**state, "checkpoint": list(self._store.checkpoint(self._position))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._position = state["position"]
        self._keeps = True
        if "stored" in state:
            if self._order is None or len(self._order) != state["stored"]:
                raise LookupError(
                    f"the state was saved when the cache was complete with {state['stored']} elements; now "
                    f"it has {self._store.count()}"
                )
            return
        self._order = None
        self._stored = self._store.count()
        if "source" in state:
            self._source.load_state_dict(state["source"])
            self._drawn = state["drawn"]
            self._keeps = False
        elif not self._store.survives and self._stored < self._position:
            at, before = state["checkpoint"]
            if before is not None:
                self._source.load_state_dict(before)
                self._drawn = at
            self._keeps = False

    def _is_stored(self, position: int) -> bool:
        if not self._keeps:
            return False
        if not self._checked:
            self._check()
        if position >= self._stored and (self._drawn != position or position == 0):
            self._stored = self._store.count()  # another stream may have added some
        return position < self._stored

    def _check(self) -> None:
        """Empties an incomplete store if the source does not have the element that was stored last."""
        self._checked = True
        last = self._stored - 1
        address: Address | None = None
        with contextlib.suppress(StopIteration, _EndedBefore):
            self._go_to(last)
            address, _ = self._make_next()
            self._drawn += 1
        if address != self._store.get(last)[0]:
            warn(
                f"the source's element {last} is not the one that was stored: the {self._stored} stored "
                "elements of an incomplete epoch are removed"
            )
            self._go_to(0)
            self._store.clear()
            self._stored = 0

    def _draw_at(self, position: int) -> tuple[Address, Any]:
        if self._keeps and (self._drawn != position or position == 0):
            if self._store.is_complete():
                raise StopIteration
            self._go_to(min(position, self._store.count()))
            while self._drawn < position:  # yielded by a process that was killed before it stored them
                self._draw()
        else:
            self._go_to(position)
        return self._draw()

    def _draw(self) -> tuple[Address, Any]:
        """The source's next element, stored if it is the next of the store."""
        position = self._drawn
        if self._keeps and position % _CHECKPOINT_EVERY == 0:
            try:
                state = self._source.state_dict()
            except LookupError:
                pass  # without addresses, the source can only be run again
            else:
                self._store.set_checkpoint(position, state)
        try:
            if self._limit is not None and position >= self._limit:
                raise StopIteration
            address, element = self._make_next()
        except StopIteration:
            if self._keeps:
                self._store.finish(position)
            raise
        except BaseException:
            self._keeps = False
            raise
        self._drawn = position + 1
        if self._keeps:
            self._store.append(position, address, element)
        return address, element

    def _go_to(self, position: int) -> None:
        """Moves the source to the element at ``position``."""
        if self._drawn == position:
            return
        at, before = self._store.checkpoint(position)
        if before is not None and not at <= self._drawn <= position:
            self._source.load_state_dict(before)
            self._drawn = at
        if self._drawn > position:
            raise LookupError("the source's elements have no addresses: it cannot go back")
        while self._drawn < position:
            try:
                self._make_next()
            except StopIteration:
                raise _EndedBefore(
                    f"the source ended after {self._drawn} elements and had more before: it yields other "
                    "elements each time it runs, so the pipeline cannot be restored"
                ) from None
            self._drawn += 1

    def _make_next(self) -> tuple[Address, Any]:
        """Takes the source's next element. The random generators stay as they are, as for a stored one.

        So a later stage that draws from them draws the same numbers, whatever this process has stored.
        """
        states = generator_states()
        try:
            return self._next()
        finally:
            restore_rng(states)


class _EndedBefore(RuntimeError):
    """The source has fewer elements than before."""
