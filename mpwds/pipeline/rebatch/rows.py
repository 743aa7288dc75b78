"""Rows of columns that can be copied without a look inside, a pool of them, and memory for batches."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mpwds.errors import SharedMemoryError
from mpwds.imports import tensor_class
from mpwds.nest import PLAIN_OR_INT
from mpwds.pipeline.rebatch.batch_schema import Column, Schema, build
from mpwds.pipeline.stream import Address, as_address
from mpwds.sharedmem import segment
from mpwds.sharedmem.cuda import CudaAccess, Pinning
from mpwds.sharedmem.lease import CopiedBatches
from mpwds.trees import tree_map

_CACHE_NBYTES = 256 << 10
"""Rows are exchanged in portions of this size: a place is written to while its old row is in the cache."""


class ShuffleBuffer:
    """Moves rows into a pool, and from there into the batch that is being made.

    The last column of the given rows holds their ids (``RowIds``); a batch has no such column. Without a
    pool, rows go straight into the batch, in order. A pool holds ``initial`` rows before the first is drawn.
    """

    def __init__(
        self, schema: Schema, buffers: RowBuffers, pool: RowPool | None = None, initial: int = 1
    ) -> None:
        self.schema = schema
        self.filled = 0  # rows that the batch has
        self._buffers = buffers
        self._pool = pool
        self._initial = initial
        self._buffer: RowBuffer | None = None
        self._ids: RowIds = np.empty(buffers.rows, np.int64)  # of the rows that the batch has

    @property
    def missing(self) -> int:
        return self._buffers.rows - self.filled

    def move(self, given: list[Rows]) -> list[Rows]:
        """Moves given rows, and returns those for which the batch has no room."""
        while given and self.missing:
            given = self._copied(given) if self._pool is None else self._exchanged(given, self._pool)
        return given

    def move_what_is_left(self) -> None:
        """Moves rows from the pool into the batch; no more rows may be given."""
        if self._pool is not None and (count := min(self._pool.count, self.missing)):
            self._pool.take(self._next_rows(count))

    def row_ids(self) -> tuple[RowIds, RowIds]:
        """The ids of the rows in the pool, and of those in the batch."""
        pool: RowIds = np.empty(0, np.int64) if self._pool is None else self._pool.held()[-1]
        return pool, self._ids[: self.filled].copy()

    def batches(self) -> tuple[Any, Any]:
        """The rows in the pool, and those in the batch, as batches of columns. They stay where they are."""
        held = [] if self._pool is None else self._pool.held()
        filled = [] if self._buffer is None else [rows[: self.filled] for rows in self._buffer.rows]
        return self._as_batch(held), self._as_batch(filled)

    def _as_batch(self, rows: list[Rows]) -> Any:
        count = len(rows[0]) if rows else 0
        buffer = self._buffers.make(count)
        for out, column in zip(buffer.rows, rows, strict=False):  # the ids come last
            out[:] = column
        return build(self.schema, iter(buffer.columns(count)))

    @property
    def draining(self) -> bool:
        """True if the pool is being emptied because no more rows are given."""
        return self._pool is not None and self._pool.order is not None

    def restore(self, held: list[Rows], filled: list[Rows], draining: bool) -> None:
        """Puts rows into the empty pool and batch, as they were when ``row_ids`` was called."""
        if self._pool is not None:
            self._pool.append(held)
            self._pool.order = np.arange(self._pool.count) if draining else None
        if len(filled[0]):
            self._copied(filled)

    def batch(self) -> Any:
        """The batch, with the rows that it has, and begins another one."""
        buffer, self._buffer = self._buffer, None
        filled, self.filled = self.filled, 0
        columns = [] if buffer is None else buffer.columns(filled)
        return build(self.schema, iter(columns))

    def _copied(self, given: list[Rows]) -> list[Rows]:
        count = min(len(given[0]), self.missing)
        for out, rows in zip(self._next_rows(count), given, strict=True):
            out[:] = rows[:count]
        return _behind(given, count)

    def _exchanged(self, given: list[Rows], pool: RowPool) -> list[Rows]:
        if room := pool.size - pool.count:
            starts = pool.count < self._initial
            wanted = self._initial - pool.count if starts else -(-len(given[0]) // 2)
            count = min(wanted, room, len(given[0]))
            pool.append([rows[:count] for rows in given])
            given = _behind(given, count)
            if starts or not given:
                return given
        count = min(len(given[0]), self.missing, pool.count)
        pool.exchange([rows[:count] for rows in given], self._next_rows(count))
        return _behind(given, count)

    def _next_rows(self, count: int) -> list[Rows]:
        """The next ``count`` rows of the batch, to be written now."""
        if self._buffer is None:
            self._buffer = self._buffers.make()
        begin, self.filled = self.filled, self.filled + count
        return [rows[begin : begin + count] for rows in (*self._buffer.rows, self._ids)]


def _behind(given: list[Rows], count: int) -> list[Rows]:
    return [rows[count:] for rows in given] if count < len(given[0]) else []


class RowPool:
    """Holds up to ``size`` rows of several columns, like those of ``like``, and gives out random ones.

    ``order`` is set once rows are only taken: they are taken from its end.
    """

    def __init__(self, size: int, like: Sequence[Rows], rng: np.random.Generator) -> None:
        row_nbytes = [math.prod(rows.shape[1:]) * rows.itemsize for rows in like]
        needed, available = size * sum(row_nbytes), segment.available_nbytes()
        if available is not None and needed > available:
            raise SharedMemoryError(
                f"shuffling after the loader takes a pool of {size:,} rows, {needed / 1e6:,.1f} MB, "
                f"{available / 1e6:,.1f} MB are left: shuffle fewer rows here, or shuffle in the workers "
                "before samples are decoded"
            )
        self.size = size
        self.count = 0
        self._rng = rng
        self._columns = rows_like(like, size)
        self._portions = [max(1, _CACHE_NBYTES // max(1, nbytes)) for nbytes in row_nbytes]
        self.order: np.ndarray | None = None

    def held(self) -> list[Rows]:
        """The rows that are held. A pool that holds them in this order continues as this one does."""
        places = slice(self.count) if self.order is None else self.order[: self.count]
        return [column[places] for column in self._columns]

    def append(self, rows: Sequence[Rows]) -> None:
        begin, end = self.count, self.count + len(rows[0])
        for column, new in zip(self._columns, rows, strict=True):
            column[begin:end] = new
        self.count = end

    def exchange(self, rows: Sequence[Rows], out: Sequence[Rows]) -> None:
        """Moves random rows to ``out``, and puts new ``rows``, no more than are held, in their places."""
        slots = self._rng.choice(self.count, len(rows[0]), replace=False)
        for column, new, old, portion in zip(self._columns, rows, out, self._portions, strict=True):
            for begin in range(0, len(slots), portion):
                end = begin + portion
                some = slots[begin:end]
                # The default mode, "raise", goes through a copy of ``out``.
                np.take(column, some, axis=0, out=old[begin:end], mode="clip")
                column[some] = new[begin:end]

    def take(self, out: Sequence[Rows]) -> None:
        """Moves random rows to ``out``, no more than are held; no rows can be added afterwards."""
        if self.order is None:
            self.order = self._rng.permutation(self.count)
        begin = self.count - len(out[0])
        slots = self.order[begin : self.count]
        for column, old in zip(self._columns, out, strict=True):
            np.take(column, slots, axis=0, out=old, mode="clip")
        self.count = begin


Rows: TypeAlias = npt.NDArray[Any]
"""The rows of a column: ``uint8 [rows, bytes of a row]``, or ``object [rows]``."""

RowIds = npt.NDArray[np.int64]
"""For each row, the number of its batch and its number in the batch, in one integer.

They are a column beside those of the data, so that a state can name rows without holding them."""

_ROW_BITS = 24
_ROW_MASK = (1 << _ROW_BITS) - 1
_MANY_BATCHES = 1024
_ALIGNMENT = 64
_SMALL_NBYTES = 1 << 20


def rows_of(spec: Column, column: Any) -> Rows:
    """The rows of a column that is an array, a tensor or a list. A contiguous array is not copied."""
    if spec.holds_objects:
        return np.fromiter(map(_without_its_batch, column), object, len(column))
    if spec.row_nbytes == 0 or len(column) == 0:  # torch views no empty tensor of two bytes as bytes
        return np.empty((len(column), spec.row_nbytes), np.uint8)
    if spec.is_tensor:
        torch = sys.modules["torch"]
        flat = column.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy()
    else:
        data = np.ascontiguousarray(column).reshape(-1).view(np.uint8)
    rows: Rows = data.reshape(len(column), spec.row_nbytes)
    return rows


def _without_its_batch(row: Any) -> Any:
    # An array in a row of a list may be a view that would keep its whole batch.
    if type(row) in PLAIN_OR_INT:
        return row
    row = tree_map(row, np.ndarray, lambda array: array.copy())
    return tree_map(row, tensor_class(), lambda tensor: tensor.clone())


class RowBuffers:
    """Makes room for batches of ``rows`` rows, in memory that is reused when nothing refers to a batch."""

    def __init__(self, specs: list[Column], rows: int, pin_memory: bool | None) -> None:
        self.rows = rows
        self._specs = specs
        self._pin_memory = pin_memory
        self._has_tensors = any(spec.is_tensor for spec in specs)
        self._copies = CopiedBatches()
        self._pinning = Pinning(CudaAccess().runtime)

    def make(self, rows: int | None = None) -> RowBuffer:
        count = self.rows if rows is None else rows
        sizes = [-(-count * spec.row_nbytes // _ALIGNMENT) * _ALIGNMENT for spec in self._specs]
        offsets = [0, *itertools.accumulate(sizes)]
        memory = self._memory(offsets[-1])
        starts = zip(self._specs, offsets, strict=False)
        data = [memory[start : start + count * spec.row_nbytes] for spec, start in starts]
        return RowBuffer(self._specs, count, data)

    def _memory(self, nbytes: int) -> Any:
        """A tensor of bytes if the batch has tensors, else an array."""
        torch = sys.modules.get("torch") if self._has_tensors else None
        pins = self._pin_memory
        if torch is not None and (torch.cuda.is_initialized() if pins is None else pins):
            pinned = self._pinning.memory(nbytes)
            if pinned is not None:
                return pinned
        if nbytes < _SMALL_NBYTES:
            memory = np.empty(nbytes, np.uint8)
        else:
            memory = np.frombuffer(self._copies.allocate_pageable(nbytes), np.uint8)
        return memory if torch is None else torch.from_numpy(memory)


class RowBuffer:
    """Room for a batch: ``data`` holds the bytes of each column, ``rows`` are its rows, to be written."""

    def __init__(self, specs: list[Column], count: int, data: list[Any]) -> None:
        self._specs = specs
        self._data = data
        self.rows: list[Rows] = [
            np.empty(count, object)
            if spec.holds_objects
            else np.asarray(part).reshape(count, spec.row_nbytes)
            for spec, part in zip(specs, data, strict=True)
        ]

    def columns(self, count: int) -> list[Any]:
        """The first ``count`` rows as columns: views of the memory, and lists."""
        parts = zip(self._specs, self._data, self.rows, strict=True)
        return [_column(spec, data, rows[:count]) for spec, data, rows in parts]


def _column(spec: Column, data: Any, rows: Rows) -> Any:
    if spec.sequence is not None:
        return spec.sequence(rows.tolist())
    shape = (len(rows), *spec.row_shape)
    if spec.holds_objects:
        column = np.empty(shape, spec.dtype)
        for number, row in enumerate(rows):
            column[number] = row
        return column
    data = data[: rows.size]
    if not len(data):  # a view of no bytes cannot have another dtype
        empty = sys.modules["torch"].empty if spec.is_tensor else np.empty
        return empty(shape, dtype=spec.dtype)
    if spec.is_tensor:
        return data.view(spec.dtype).view(shape)
    return np.asarray(data).view(spec.dtype).reshape(shape)


class SourceBatches:
    """The addresses of the batches whose rows are held, by the batches' numbers."""

    def __init__(self, addresses: Sequence[Any] = ()) -> None:
        self.addresses: dict[int, Address] = dict(enumerate(map(as_address, addresses)))
        self._next = len(self.addresses)
        self._kept = 0

    def take(self, address: Address, rows: int) -> RowIds:
        """Remembers a batch; returns the ids of its rows."""
        number, self._next = self._next, self._next + 1
        self.addresses[number] = address
        return row_ids_of(number, rows)

    def addresses_of(self, ids: RowIds) -> list[Address]:
        """The addresses of rows: those of their batches, and their numbers in these."""
        return [(self.addresses[row >> _ROW_BITS], row & _ROW_MASK) for row in ids.tolist()]

    @property
    def many(self) -> bool:
        return len(self.addresses) > 2 * self._kept + _MANY_BATCHES

    def keep_only(self, held: Sequence[RowIds]) -> None:
        self._keep(np.unique(np.concatenate(held) >> _ROW_BITS).tolist())

    def _keep(self, numbers: list[int]) -> None:
        self.addresses = {number: self.addresses[number] for number in numbers}
        self._kept = len(numbers)

    def placed(self, held: Sequence[RowIds]) -> tuple[list[list[int]], list[list[int]]]:
        """The rows that are left of each batch, and where among all these the ``held`` ones are."""
        ids = np.concatenate(held)
        order = np.argsort(ids)
        places = np.empty_like(order)
        places[order] = np.arange(len(ids))
        batches, rows = ids[order] >> _ROW_BITS, (ids[order] & _ROW_MASK).tolist()
        starts = np.flatnonzero(np.diff(batches, prepend=-1))
        self._keep(batches[starts].tolist())
        left = [rows[begin:end] for begin, end in itertools.pairwise([*starts.tolist(), len(rows)])]
        ends = np.cumsum([len(part) for part in held])[:-1]
        return left, [part.tolist() for part in np.split(places, ends)]


def row_ids_in(left: Sequence[Sequence[int]]) -> RowIds:
    """The ids of the rows that are left of batches, whose numbers count from 0."""
    parts = [np.array(rows, np.int64) + (number << _ROW_BITS) for number, rows in enumerate(left)]
    return np.concatenate([np.empty(0, np.int64), *parts])


def row_ids_of(batch: int, rows: int) -> RowIds:
    """The ids of all rows of a batch, or ValueError if it has too many."""
    if rows >= 1 << _ROW_BITS:
        raise ValueError(f"rebatched: a batch has {rows:,} rows, it may have {_ROW_MASK:,}")
    first = batch << _ROW_BITS
    return np.arange(first, first + rows)


def rows_like(rows: Sequence[Rows], count: int) -> list[Rows]:
    """Columns for ``count`` rows like these, not filled."""
    return [np.empty((count, *column.shape[1:]), column.dtype) for column in rows]


def gather(batch: int, ids: RowIds, rows: Sequence[Rows], out: Sequence[Rows]) -> None:
    """Copies rows of a batch into ``out``, whose rows have these ``ids``; those of other batches stay."""
    (slots,) = np.nonzero(ids >> _ROW_BITS == batch)
    numbers = ids[slots] & _ROW_MASK
    for column, into in zip(rows, out, strict=True):
        into[slots] = column[numbers]
