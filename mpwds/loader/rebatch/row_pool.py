"""A pool of rows, from which random ones are taken by vectorised copies."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mpwds.errors import SharedMemoryError
from mpwds.loader.rebatch.row_buffers import Rows
from mpwds.sharedmem import segment

_CACHE_NBYTES = 256 << 10
"""Rows are exchanged in portions of this size: a place is written to while its old row is in the cache."""


class RowPool:
    """Holds up to ``size`` rows. All operations take and give the rows of several columns.

    Args:
        size: Rows, at the most.
        like: Columns whose rows are like those that the pool will hold.
        rng: Chooses rows.

    Attributes:
        count: Rows that are held.

    Raises:
        SharedMemoryError: There is no memory for so many rows.

    Example:
        >>> pool = RowPool(2, [np.zeros(0, object)], np.random.default_rng(0))
        >>> pool.append([np.array(["a", "b"], object)])
        >>> rows = np.empty(1, object)
        >>> pool.exchange([np.array(["c"], object)], [rows])
        >>> left = np.empty(2, object)
        >>> pool.take([left])
        >>> sorted([*rows, *left])
        ['a', 'b', 'c']
    """

    def __init__(self, size: int, like: Sequence[Rows], rng: np.random.Generator) -> None:
        _check_memory(size, like)
        self.size = size
        self.count = 0
        self._rng = rng
        try:
            self._columns = [np.empty((size, *rows.shape[1:]), rows.dtype) for rows in like]
        except (MemoryError, ValueError) as error:
            raise _too_large(size, like, "more than the system gives") from error
        self._portions = [max(1, _CACHE_NBYTES // max(1, _row_nbytes(rows))) for rows in like]
        self._order: np.ndarray | None = None

    @property
    def room(self) -> int:
        """Rows that can be appended."""
        return self.size - self.count

    def held(self) -> list[Rows]:
        """The rows that are held, in an order in which a pool that holds them goes on as this one does."""
        if self._order is None:
            return [column[: self.count] for column in self._columns]
        return [column[self._order[: self.count]] for column in self._columns]

    @property
    def draining(self) -> bool:
        """Whether rows have been taken out of it without others in their place."""
        return self._order is not None

    def drain_in_order(self) -> None:
        """From now on rows are only taken out: those that were appended first, last."""
        self._order = np.arange(self.count)

    def append(self, rows: Sequence[Rows]) -> None:
        """Holds further rows, no more than there is room for."""
        begin, end = self.count, self.count + len(rows[0])
        for column, new in zip(self._columns, rows, strict=True):
            column[begin:end] = new
        self.count = end

    def exchange(self, rows: Sequence[Rows], out: Sequence[Rows]) -> None:
        """Moves random rows out, and puts as many new ones in their places.

        Args:
            rows: The new ones, no more than are held.
            out: Where the others go, in random order.
        """
        slots = self._rng.choice(self.count, len(rows[0]), replace=False)
        for column, new, old, portion in zip(self._columns, rows, out, self._portions, strict=True):
            if len(slots) <= portion:
                np.take(column, slots, axis=0, out=old, mode="clip")
                column[slots] = new
                continue
            for begin in range(0, len(slots), portion):
                end = begin + portion
                some = slots[begin:end]
                # The default mode, "raise", goes through a copy of ``out``.
                np.take(column, some, axis=0, out=old[begin:end], mode="clip")
                column[some] = new[begin:end]

    def take(self, out: Sequence[Rows]) -> None:
        """Moves random rows out, no more than are held; nothing can be put in afterwards."""
        if self._order is None:
            self._order = self._rng.permutation(self.count)
        begin = self.count - len(out[0])
        slots = self._order[begin : self.count]
        for column, old in zip(self._columns, out, strict=True):
            np.take(column, slots, axis=0, out=old, mode="clip")
        self.count = begin


def _row_nbytes(rows: Rows) -> int:
    return math.prod(rows.shape[1:]) * rows.itemsize


def _check_memory(size: int, like: Sequence[Rows]) -> None:
    available = segment.available_nbytes()
    if available is not None and size * sum(map(_row_nbytes, like)) > available:
        raise _too_large(size, like, f"{available / 1e6:,.1f} MB are left")


def _too_large(size: int, like: Sequence[Rows], reason: str) -> SharedMemoryError:
    nbytes = size * sum(map(_row_nbytes, like))
    return SharedMemoryError(
        f"shuffling behind the loader takes a pool of {size:,} rows, {nbytes / 1e6:,.1f} MB, {reason}: "
        "shuffle fewer rows here, or shuffle in the workers before samples are decoded"
    )
