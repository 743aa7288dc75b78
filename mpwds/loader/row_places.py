"""Where rows come from: a column of numbers beside the columns of rows, for a state without their data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mpwds.loader.row_buffers import Rows
from mpwds.pipeline.stream import Address, as_address

Places = npt.NDArray[np.int64]
"""For each row, the number of the batch that it came in, and its number in that."""

_ROW_BITS = 24
_MANY = 1024


class TakenBatches:
    """The addresses of the batches whose rows are held somewhere.

    Args:
        numbers: The batches' numbers.
        addresses: Their addresses.

    Attributes:
        addresses: The address of each batch, by its number.
        many: There are so many that it is time for :meth:`keep_only`.
    """

    def __init__(self, numbers: Sequence[int] = (), addresses: Sequence[Any] = ()) -> None:
        self.addresses: dict[int, Address] = dict(zip(numbers, map(as_address, addresses), strict=True))
        self._next = max(self.addresses, default=-1) + 1
        self._kept = 0

    def take(self, address: Address, rows: int) -> Places:
        """Remembers a batch; the column of its rows' places."""
        number, self._next = self._next, self._next + 1
        self.addresses[number] = address
        return places_of(number, rows)

    @property
    def many(self) -> bool:
        return len(self.addresses) > 2 * self._kept + _MANY

    def keep_only(self, places: Sequence[Places]) -> None:
        """Forgets the batches of which no row is at any of these places."""
        numbers = np.unique(np.concatenate(places) >> _ROW_BITS).tolist()
        self.addresses = {number: self.addresses[number] for number in numbers}
        self._kept = len(numbers)

    def in_order(self) -> Iterator[tuple[int, Address]]:
        """The batches in the order of their addresses, in which they are fetched fastest."""
        return iter(sorted(self.addresses.items(), key=lambda item: item[1]))


def places_of(batch: int, rows: int) -> Places:
    """The column of places of all rows of a batch.

    Raises:
        ValueError: It has too many rows.

    Example:
        >>> places_of(1, 3) - (1 << 24)
        array([0, 1, 2])
    """
    if rows >= 1 << _ROW_BITS:
        raise ValueError(f"rebatched: a batch has {rows:,} rows, it may have {(1 << _ROW_BITS) - 1:,}")
    first = batch << _ROW_BITS
    return np.arange(first, first + rows)


def rows_like(rows: Sequence[Rows], count: int) -> list[Rows]:
    """Room for so many rows of columns like these."""
    return [np.empty((count, *column.shape[1:]), column.dtype) for column in rows]


def gather(batch: int, places: Places, rows: Sequence[Rows], out: Sequence[Rows]) -> None:
    """Copies those rows of a batch whose places are given.

    Args:
        batch: The batch's number.
        places: Of the rows of ``out``, of any batches.
        rows: The columns of the batch.
        out: Columns, into which the batch's rows go where their places are.
    """
    (slots,) = np.nonzero(places >> _ROW_BITS == batch)
    numbers = places[slots] & ((1 << _ROW_BITS) - 1)
    for column, into in zip(rows, out, strict=True):
        into[slots] = column[numbers]
