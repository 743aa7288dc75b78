"""Makes batches of rows that are drawn from a pool, by vectorised copies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpwds.errors import SharedMemoryError
from mpwds.loader.rebatch.batch_schema import Schema, build
from mpwds.loader.rebatch.rows import RowBuffer, RowBuffers, RowIds, Rows, rows_like
from mpwds.sharedmem import segment

_CACHE_NBYTES = 256 << 10
"""Rows are exchanged in portions of this size: a place is written to while its old row is in the cache."""


class RowMixer:
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

    @property
    def draining(self) -> bool:
        """True if the pool is being emptied because no more rows are given."""
        return self._pool is not None and self._pool.order is not None

    def put_back(self, held: list[Rows], filled: list[Rows], draining: bool) -> None:
        """Puts rows into the empty pool and batch, as they were when ``row_ids`` was called."""
        if self._pool is not None:
            self._pool.append(held)
            self._pool.order = np.arange(self._pool.count) if draining else None
        if len(filled[0]):
            for out, rows in zip(self._next_rows(len(filled[0])), filled, strict=True):
                out[:] = rows

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
                f"shuffling behind the loader takes a pool of {size:,} rows, {needed / 1e6:,.1f} MB, "
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
