"""Columns as arrays of rows that can be copied without a look inside, ids of rows, and memory for batches."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mpwds.loader.rebatch.batch_schema import Column
from mpwds.pipeline.stream import Address, as_address
from mpwds.sharedmem.private import PrivateCopies

Rows: TypeAlias = npt.NDArray[Any]
"""The rows of a column: ``uint8 [rows, bytes of a row]``, or ``object [rows]``."""

RowIds = npt.NDArray[np.int64]
"""For each row, the number of its batch and its number in the batch, in one integer.

They are a column beside those of the data, so that a state can name rows without holding them."""

_ROW_BITS = 24
_MANY_BATCHES = 1024
_ALIGNMENT = 64
_SMALL_NBYTES = 1 << 20


def rows_of(spec: Column, column: Any) -> Rows:
    """The rows of a column that is an array, a tensor or a list. A contiguous array is not copied."""
    if spec.holds_objects:
        return np.fromiter(map(_without_its_batch, column), object, len(column))
    if spec.row_nbytes == 0 or len(column) == 0:
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
    # An array that is a row of a list may be a view that would keep its whole batch.
    if type(row) is np.ndarray:
        return row.copy()
    torch = sys.modules.get("torch")
    return row.clone() if torch is not None and isinstance(row, torch.Tensor) else row


class RowBuffers:
    """Makes room for batches of ``rows`` rows, in memory that is reused when nothing refers to a batch."""

    def __init__(self, specs: list[Column], rows: int, pin_memory: bool | None = None) -> None:
        self.rows = rows
        self._specs = specs
        self._pin_memory = pin_memory
        sizes = [-(-rows * spec.row_nbytes // _ALIGNMENT) * _ALIGNMENT for spec in specs]
        self._offsets = [0, *itertools.accumulate(sizes)]
        self._has_tensors = any(spec.is_tensor for spec in specs)
        self._copies = PrivateCopies()

    def make(self) -> RowBuffer:
        memory = self._memory(self._offsets[-1])
        starts = zip(self._specs, self._offsets, strict=False)
        data = [memory[start : start + self.rows * spec.row_nbytes] for spec, start in starts]
        return RowBuffer(self._specs, self.rows, data)

    def _memory(self, nbytes: int) -> Any:
        """A tensor of bytes if the batch has tensors, else an array."""
        torch = sys.modules.get("torch") if self._has_tensors else None
        pins = self._pin_memory
        if torch is not None and (torch.cuda.is_initialized() if pins is None else pins):
            # torch's allocator reuses such memory once all work that was started with it has run.
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        if nbytes < _SMALL_NBYTES:
            memory = np.empty(nbytes, np.uint8)
        else:
            memory = np.frombuffer(self._copies.blank(nbytes), np.uint8)
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


class TakenBatches:
    """The addresses of the batches whose rows are held, by the batches' numbers."""

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
        """True if :meth:`keep_only` should be called."""
        return len(self.addresses) > 2 * self._kept + _MANY_BATCHES

    def keep_only(self, held: Sequence[RowIds]) -> None:
        """Forgets the batches of which no row is held."""
        numbers = np.unique(np.concatenate(held) >> _ROW_BITS).tolist()
        self.addresses = {number: self.addresses[number] for number in numbers}
        self._kept = len(numbers)


def row_ids_of(batch: int, rows: int) -> RowIds:
    """The ids of all rows of a batch, or ValueError if it has too many."""
    if rows >= 1 << _ROW_BITS:
        raise ValueError(f"rebatched: a batch has {rows:,} rows, it may have {(1 << _ROW_BITS) - 1:,}")
    first = batch << _ROW_BITS
    return np.arange(first, first + rows)


def rows_like(rows: Sequence[Rows], count: int) -> list[Rows]:
    """Columns for ``count`` rows like these, not filled."""
    return [np.empty((count, *column.shape[1:]), column.dtype) for column in rows]


def gather(batch: int, ids: RowIds, rows: Sequence[Rows], out: Sequence[Rows]) -> None:
    """Copies rows of a batch into ``out``, whose rows have these ``ids``; those of other batches stay."""
    (slots,) = np.nonzero(ids >> _ROW_BITS == batch)
    numbers = ids[slots] & ((1 << _ROW_BITS) - 1)
    for column, into in zip(rows, out, strict=True):
        into[slots] = column[numbers]
