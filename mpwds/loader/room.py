"""Room in a block for the columns of a batch whose rows still come (``pipeline.collation.rows_in_place``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mpwds import tenbin
from mpwds.loader.arrays_as_sent import AsTensor
from mpwds.pipeline.collation.collate import Stack
from mpwds.pipeline.collation.rows_in_place import Form
from mpwds.sharedmem.arena import Block

GAP = 32
"""Bytes before each tenbin array of a batch. Encoded arrays are 32 bytes more than a multiple of 64 long and
their data starts 32 bytes past one, so with this gap all data is aligned to 64 bytes."""


class BlockRoom:
    """The beginning of a block, where the large columns are to lie.

    Args:
        block: A free block of ``columns_nbytes(forms)`` at least, taken.
        forms: Of the columns.
        on_given_up: Called when the block is not to be sent.

    Attributes:
        block: The block.
        columns: Where the columns' rows go.
        columns_nbytes: Bytes that they take, their headers included.
        given_up: Whether the block was sent or taken back.
    """

    def __init__(self, block: Block, forms: Sequence[Form], on_given_up: Callable[[BlockRoom], None]) -> None:
        self.block = block
        self.given_up = False
        self.columns: list[npt.NDArray[Any]] = []
        self._on_given_up = on_given_up
        self._offsets: list[int] = []
        self.columns_nbytes = 0
        for shape, dtype in forms:
            offset = self.columns_nbytes + GAP
            start = offset + tenbin.data_offset(len(shape))
            column = np.frombuffer(block.memory, dtype, int(np.prod(shape)), start).reshape(shape)
            self.columns.append(column)
            self._offsets.append(offset)
            self.columns_nbytes = offset + tenbin.array_nbytes(column)

    def give_up(self) -> None:
        """Gives the block back."""
        self.given_up = True
        self._on_given_up(self)

    def offsets(self, arrays: Sequence[tenbin.Array]) -> tuple[list[int], int]:
        """Where a batch's arrays go, those whose rows are here where they are, and where the last one ends.

        There are no offsets if one of the columns is none of the batch's.
        """
        vacant = set(range(len(self.columns)))
        offsets, end = [], self.columns_nbytes
        for array in arrays:
            column = self._column_of(stack_of(array))
            if column in vacant:
                vacant.remove(column)
                offsets.append(self._offsets[column])
            else:
                offsets.append(end + GAP)
                end += GAP + tenbin.array_nbytes(array)
        return ([] if vacant else offsets), end

    def _column_of(self, stack: Stack | None) -> int:
        """The number of the column that begins with a stack's first row; -1 if none does."""
        if stack is not None:
            for number, column in enumerate(self.columns):
                if stack.begins_in(column):
                    return number
        return -1


def columns_nbytes(forms: Sequence[Form]) -> int:
    """Bytes that a block must have for columns of these forms.

    Example:
        >>> columns_nbytes([((64,), np.dtype("uint8"))])
        192
    """
    sizes = [int(np.prod(shape)) * dtype.itemsize for shape, dtype in forms]
    heads = [GAP + tenbin.data_offset(len(shape)) for shape, _ in forms]
    return sum(heads) + sum(nbytes + 63 & -64 for nbytes in sizes)


def stack_of(array: tenbin.Array) -> Stack | None:
    """The rows that an array will be made of, if it is not made yet.

    Example:
        >>> rows = Stack([np.zeros(3)], np.dtype(float))
        >>> stack_of(AsTensor(rows)) is rows, stack_of(np.zeros(3))
        (True, None)
    """
    source = array.source if isinstance(array, AsTensor) else array
    return source if isinstance(source, Stack) else None
