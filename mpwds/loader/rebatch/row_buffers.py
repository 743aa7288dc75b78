"""Columns as arrays of rows that can be copied without a look inside, and the memory of new batches."""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mpwds.loader.rebatch.batch_schema import ArrayColumn, Column, ListColumn
from mpwds.sharedmem.private import PrivateCopies

Rows: TypeAlias = npt.NDArray[Any]
"""The rows of a column: ``uint8 [rows, bytes of a row]``, or ``object [rows]``."""

_ALIGNMENT = 64
_SMALL_NBYTES = 1 << 20


def rows_of(spec: Column, column: Any) -> Rows:
    """The rows of a column, without a copy of an array that is contiguous.

    Args:
        spec: The column's dtype and shape of a row.
        column: Array, tensor or list.

    Example:
        >>> rows_of(ArrayColumn(np.dtype("uint16"), (2,)), np.array([[1, 2], [3, 4]], "uint16"))
        array([[1, 0, 2, 0],
               [3, 0, 4, 0]], dtype=uint8)
    """
    if isinstance(spec, ListColumn):
        return np.fromiter(map(_without_its_batch, column), object, len(column))
    if spec.holds_objects:
        return np.fromiter(column, object, len(column))
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
    """An array among the rows of a list is a view that would keep its whole batch."""
    if type(row) is np.ndarray:
        return row.copy()
    torch = sys.modules.get("torch")
    return row.clone() if torch is not None and isinstance(row, torch.Tensor) else row


class RowBuffers:
    """Makes room for batches, in memory that is used again when nothing refers to a batch any more.

    Args:
        specs: The specs of a batch's columns.
        rows: Rows of a batch, at the most.
        pin_memory: Whether tensors lie in pinned memory; ``None``: if this process has used CUDA.

    Attributes:
        rows: Rows of a batch, at the most.
    """

    def __init__(self, specs: list[Column], rows: int, pin_memory: bool | None = None) -> None:
        self.rows = rows
        self._specs = specs
        self._pin_memory = pin_memory
        self._offsets: list[int] = []
        end = 0
        for spec in specs:
            self._offsets.append(end)
            if isinstance(spec, ArrayColumn) and not spec.holds_objects:
                end += -(-rows * spec.row_nbytes // _ALIGNMENT) * _ALIGNMENT
        self._nbytes = end
        self._has_tensors = any(isinstance(spec, ArrayColumn) and spec.is_tensor for spec in specs)
        self._copies = PrivateCopies()

    def make(self) -> RowBuffer:
        """Room for one batch.

        Raises:
            SharedMemoryError: There is no memory left.
        """
        return RowBuffer(self._specs, self.rows, self._offsets, self._memory())

    def _memory(self) -> Any:
        """A tensor of bytes if the batch has tensors, else an array."""
        torch = sys.modules.get("torch") if self._has_tensors else None
        if torch is not None and self._pins(torch):
            # torch's allocator gives such memory out again, once all that was started with it has run.
            return torch.empty(self._nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        if self._nbytes < _SMALL_NBYTES:
            memory = np.empty(self._nbytes, np.uint8)
        else:
            memory = np.frombuffer(self._copies.blank(self._nbytes), np.uint8)
        return memory if torch is None else torch.from_numpy(memory)

    def _pins(self, torch: Any) -> bool:
        return bool(torch.cuda.is_initialized() if self._pin_memory is None else self._pin_memory)


class RowBuffer:
    """Room for a batch, which :class:`RowBuffers` makes.

    Attributes:
        rows: The rows of each column, to be written.
    """

    def __init__(self, specs: list[Column], rows: int, offsets: list[int], memory: Any) -> None:
        self._specs = specs
        self._offsets = offsets
        self._memory = memory
        written = memory if isinstance(memory, np.ndarray) else memory.numpy()
        self.rows: list[Rows] = []
        for spec, offset in zip(specs, offsets, strict=True):
            if isinstance(spec, ListColumn) or spec.holds_objects:
                self.rows.append(np.empty(rows, object))
            else:
                nbytes = spec.row_nbytes
                self.rows.append(written[offset : offset + rows * nbytes].reshape(rows, nbytes))

    def columns(self, count: int) -> list[Any]:
        """The first ``count`` rows as columns: views of the memory, and lists."""
        return [
            self._column(spec, offset, rows, count)
            for spec, offset, rows in zip(self._specs, self._offsets, self.rows, strict=True)
        ]

    def _column(self, spec: Column, offset: int, rows: Rows, count: int) -> Any:
        if isinstance(spec, ListColumn):
            return spec.kind(rows[:count].tolist())
        shape = (count, *spec.row_shape)
        if spec.holds_objects:
            column = np.empty(shape, spec.dtype)
            for number, row in enumerate(rows[:count]):
                column[number] = row
            return column
        data = self._memory[offset : offset + count * spec.row_nbytes]
        if not len(data):  # nor could a view of no bytes have another dtype
            empty = sys.modules["torch"].empty if spec.is_tensor else np.empty
            return empty(shape, dtype=spec.dtype)
        if spec.is_tensor:
            return data.view(spec.dtype).view(shape)
        return np.asarray(data).view(spec.dtype).reshape(shape)
