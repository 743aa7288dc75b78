"""Columns as arrays of rows that can be copied without a look inside, and the memory of new batches."""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mpwds.loader.batch_form import ArrayForm, ListForm
from mpwds.sharedmem.private import PrivateCopies

Rows: TypeAlias = npt.NDArray[Any]
"""The rows of a column: ``uint8 [rows, bytes of a row]``, or ``object [rows]``."""

_ALIGNMENT = 64
_SMALL_NBYTES = 1 << 20


def rows_of(form: ArrayForm | ListForm, column: Any) -> Rows:
    """The rows of a column, without a copy of an array that is contiguous.

    Args:
        form: The column's form.
        column: Array, tensor or list.

    Example:
        >>> rows_of(ArrayForm(np.dtype("uint16"), (2,)), np.array([[1, 2], [3, 4]], "uint16"))
        array([[1, 0, 2, 0],
               [3, 0, 4, 0]], dtype=uint8)
    """
    if isinstance(form, ListForm):
        return np.fromiter(map(_without_its_batch, column), object, len(column))
    if form.holds_objects:
        return np.fromiter(column, object, len(column))
    if form.row_nbytes == 0 or len(column) == 0:
        return np.empty((len(column), form.row_nbytes), np.uint8)
    if form.is_tensor:
        torch = sys.modules["torch"]
        flat = column.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy()
    else:
        data = np.ascontiguousarray(column).reshape(-1).view(np.uint8)
    rows: Rows = data.reshape(len(column), form.row_nbytes)
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
        forms: The forms of a batch's columns.
        rows: Rows of a batch, at the most.
        pin_memory: Whether tensors lie in pinned memory; ``None``: if this process has used CUDA.

    Attributes:
        rows: Rows of a batch, at the most.
    """

    def __init__(self, forms: list[ArrayForm | ListForm], rows: int, pin_memory: bool | None = None) -> None:
        self.rows = rows
        self._forms = forms
        self._pin_memory = pin_memory
        self._offsets: list[int] = []
        end = 0
        for form in forms:
            self._offsets.append(end)
            if isinstance(form, ArrayForm) and not form.holds_objects:
                end += -(-rows * form.row_nbytes // _ALIGNMENT) * _ALIGNMENT
        self._nbytes = end
        self._has_tensors = any(isinstance(form, ArrayForm) and form.is_tensor for form in forms)
        self._copies = PrivateCopies()

    def make(self) -> RowBuffer:
        """Room for one batch.

        Raises:
            SharedMemoryError: There is no memory left.
        """
        return RowBuffer(self._forms, self.rows, self._offsets, self._memory())

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

    def __init__(self, forms: list[ArrayForm | ListForm], rows: int, offsets: list[int], memory: Any) -> None:
        self._forms = forms
        self._offsets = offsets
        self._memory = memory
        written = memory if isinstance(memory, np.ndarray) else memory.numpy()
        self.rows: list[Rows] = []
        for form, offset in zip(forms, offsets, strict=True):
            if isinstance(form, ListForm) or form.holds_objects:
                self.rows.append(np.empty(rows, object))
            else:
                nbytes = form.row_nbytes
                self.rows.append(written[offset : offset + rows * nbytes].reshape(rows, nbytes))

    def columns(self, count: int) -> list[Any]:
        """The first ``count`` rows as columns: views of the memory, and lists."""
        return [
            self._column(form, offset, rows, count)
            for form, offset, rows in zip(self._forms, self._offsets, self.rows, strict=True)
        ]

    def _column(self, form: ArrayForm | ListForm, offset: int, rows: Rows, count: int) -> Any:
        if isinstance(form, ListForm):
            return form.kind(rows[:count].tolist())
        shape = (count, *form.row_shape)
        if form.holds_objects:
            column = np.empty(shape, form.dtype)
            for number, row in enumerate(rows[:count]):
                column[number] = row
            return column
        data = self._memory[offset : offset + count * form.row_nbytes]
        if not len(data):  # nor could a view of no bytes have another dtype
            empty = sys.modules["torch"].empty if form.is_tensor else np.empty
            return empty(shape, dtype=form.dtype)
        if form.is_tensor:
            return data.view(form.dtype).view(shape)
        return np.asarray(data).view(form.dtype).reshape(shape)
