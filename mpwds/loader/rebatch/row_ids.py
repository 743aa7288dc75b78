"""Ids of rows: a column beside those of the data, so that a state can name rows without holding them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mpwds.loader.rebatch.row_buffers import Rows
from mpwds.pipeline.stream import Address, as_address

RowIds = npt.NDArray[np.int64]
"""For each row, the number of its batch and its number in the batch, in one integer."""

_ROW_BITS = 24
_MANY = 1024


class TakenBatches:
    """The addresses of the batches whose rows are held.

    Args:
        numbers: The batches' numbers.
        addresses: Their addresses.

    Attributes:
        addresses: The address of each batch, by its number.
        many: Whether there are so many that :meth:`keep_only` should be called.
    """

    def __init__(self, numbers: Sequence[int] = (), addresses: Sequence[Any] = ()) -> None:
        self.addresses: dict[int, Address] = dict(zip(numbers, map(as_address, addresses), strict=True))
        self._next = max(self.addresses, default=-1) + 1
        self._kept = 0

    def take(self, address: Address, rows: int) -> RowIds:
        """Remembers a batch; returns the ids of its rows."""
        number, self._next = self._next, self._next + 1
        self.addresses[number] = address
        return row_ids_of(number, rows)

    @property
    def many(self) -> bool:
        return len(self.addresses) > 2 * self._kept + _MANY

    def keep_only(self, held: Sequence[RowIds]) -> None:
        """Forgets the batches of which no row is held."""
        numbers = np.unique(np.concatenate(held) >> _ROW_BITS).tolist()
        self.addresses = {number: self.addresses[number] for number in numbers}
        self._kept = len(numbers)

    def in_order(self) -> Iterator[tuple[int, Address]]:
        """Numbers and addresses in the order of the addresses, in which batches are fetched fastest."""
        return iter(sorted(self.addresses.items(), key=lambda item: item[1]))


def row_ids_of(batch: int, rows: int) -> RowIds:
    """The ids of all rows of a batch.

    Raises:
        ValueError: The batch has too many rows.

    Example:
        >>> row_ids_of(1, 3) - (1 << 24)
        array([0, 1, 2])
    """
    if rows >= 1 << _ROW_BITS:
        raise ValueError(f"rebatched: a batch has {rows:,} rows, it may have {(1 << _ROW_BITS) - 1:,}")
    first = batch << _ROW_BITS
    return np.arange(first, first + rows)


def rows_like(rows: Sequence[Rows], count: int) -> list[Rows]:
    """Columns of ``count`` rows like these, not filled."""
    return [np.empty((count, *column.shape[1:]), column.dtype) for column in rows]


def gather(batch: int, ids: RowIds, rows: Sequence[Rows], out: Sequence[Rows]) -> None:
    """Copies the rows of a batch to where their ids stand.

    Args:
        batch: The batch's number.
        ids: The ids of the rows of ``out``; rows of other batches are left alone.
        rows: The columns of the batch.
        out: The columns to copy to.
    """
    (slots,) = np.nonzero(ids >> _ROW_BITS == batch)
    numbers = ids[slots] & ((1 << _ROW_BITS) - 1)
    for column, into in zip(rows, out, strict=True):
        into[slots] = column[numbers]
