"""Rows that are given, through a pool, into batches of one size."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpwds.loader.rebatch.batch_schema import Schema, build
from mpwds.loader.rebatch.row_buffers import RowBuffer, RowBuffers, Rows
from mpwds.loader.rebatch.row_ids import RowIds
from mpwds.loader.rebatch.row_pool import RowPool


class RowMixer:
    """The pool of rows, and the batch that is being made of rows from it.

    The last column of the given rows holds their ids (``rebatch.row_ids``); a batch has no such column.

    Args:
        schema: The batches' schema.
        buffers: Where they are made.
        pool: What gives random rows; without it, rows go straight into the batch, in order.
        initial: Rows that the pool holds before the first is drawn.

    Attributes:
        schema: The batches' schema.
        filled: Rows that the batch has.
    """

    def __init__(
        self, schema: Schema, buffers: RowBuffers, pool: RowPool | None = None, initial: int = 1
    ) -> None:
        self.schema = schema
        self.filled = 0
        self._buffers = buffers
        self._pool = pool
        self._initial = initial
        self._buffer: RowBuffer | None = None
        self._ids: RowIds = np.empty(buffers.rows, np.int64)  # of the rows that the batch has

    @property
    def missing(self) -> int:
        """Rows that the batch is short of."""
        return self._buffers.rows - self.filled

    def move(self, given: list[Rows]) -> list[Rows]:
        """Moves rows that are given into the pool, and rows from there into the batch.

        Args:
            given: Rows of each column.

        Returns:
            Those that were not moved; there are some only if the batch is full.
        """
        while given and self.missing:
            given = self._copied(given) if self._pool is None else self._exchanged(given, self._pool)
        return given

    def move_what_is_left(self) -> None:
        """Moves rows from the pool into the batch; from now on none are given."""
        if self._pool is not None and (count := min(self._pool.count, self.missing)):
            self._pool.take(self._next_rows(count))

    def row_ids(self) -> tuple[RowIds, RowIds]:
        """The ids of the rows in the pool, and of those in the batch."""
        pool: RowIds = np.empty(0, np.int64) if self._pool is None else self._pool.held()[-1]
        return pool, self._ids[: self.filled].copy()

    @property
    def draining(self) -> bool:
        """Whether rows have been moved from the pool because no more are given."""
        return self._pool is not None and self._pool.draining

    def put_back(self, held: list[Rows], filled: list[Rows], draining: bool) -> None:
        """Puts rows into the empty pool and batch, as they were when ``row_ids`` was called."""
        if self._pool is not None:
            self._pool.append(held)
            if draining:
                self._pool.drain_in_order()
        if len(filled[0]):
            for out, rows in zip(self._next_rows(len(filled[0])), filled, strict=True):
                out[:] = rows

    def batch(self) -> Any:
        """The batch, with the rows that it has; from now on another one is made."""
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
        if pool.room:
            starts = pool.count < self._initial
            wanted = self._initial - pool.count if starts else -(-len(given[0]) // 2)
            count = min(wanted, pool.room, len(given[0]))
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
