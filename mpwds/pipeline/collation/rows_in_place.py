"""Copy the large rows of a batch to their places as they come, while the processor's cache holds them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mpwds.pipeline.collation.collate import FIXED_SIZE

LEAST_ROW_NBYTES = 32 << 10
"""Smaller rows are still in the cache when the batch is complete, and copied together they cost less."""

Form = tuple[tuple[int, ...], np.dtype[Any]]
"""A column's shape and dtype."""


class Room(Protocol):
    """Memory for the columns of a batch that is being gathered.

    Attributes:
        columns: What was asked for.
        given_up: Whether it is somebody else's by now: the batch was sent in it, say.
    """

    @property
    def columns(self) -> Sequence[npt.NDArray[Any]]: ...

    @property
    def given_up(self) -> bool: ...

    def give_up(self) -> None:
        """Says that nothing in it is needed any more."""


FindRoom = Callable[[Sequence[Form]], "Room | None"]
"""Finds room for columns of the given forms; ``None`` where there is none. One stream may ask at a time."""

Put = Callable[[int, Any], Any]
"""``put(number, sample)``: the sample, number so many of its batch, with its large rows in their places."""


class RowsInPlace:
    """Puts rows into room that is found for them before their batch is complete.

    A row that was put is replaced in its sample by a view of its place. So a sample stays what it was, and
    who makes the batch copies what does not lie where it belongs, whatever the reason. Kept until the batch
    is complete, 64 images of 224x224 in float32 have left the cache, and each was decoded into other memory:
    that took 3.4 % of the time of decoding them, and 1.3 % in uint8.

    Args:
        find_room: Finds the room.

    Example:
        >>> class Heap:
        ...     given_up = False
        ...     def __init__(self, forms):
        ...         self.columns = [np.empty(shape, dtype) for shape, dtype in forms]
        ...     def give_up(self):
        ...         self.given_up = True
        >>> sample = (np.ones((128, 128, 3), "uint8"), 7)
        >>> put = RowsInPlace(Heap).begin(sample, rows=2)
        >>> put(0, sample)[0].base.shape
        (2, 128, 128, 3)
    """

    def __init__(self, find_room: FindRoom) -> None:
        self._find_room = find_room
        self._room: Room | None = None
        self._fields: list[_Field] = []

    def begin(self, first: Any, rows: int) -> Put | None:
        """What puts the samples of a batch in their places, the first one too; ``None`` where nothing does.

        Args:
            first: The batch's first sample: a tuple, a list, a dict or a bare array. Its arrays and CPU
                tensors of :data:`LEAST_ROW_NBYTES` at least, of numbers, say what rows come.
            rows: The most samples that the batch will have.
        """
        large = list(_large_rows(first))
        if not large:
            return None
        forms = [((rows, *row.shape), dtype) for _, row, dtype in large]
        room = self._room
        if room is None or room.given_up or [(one.shape, one.dtype) for one in room.columns] != forms:
            self.end()
            self._room = room = self._find_room(forms)
            if room is None:
                return None
        self._fields = [
            _Field(name, type(row), row.shape, row.dtype, _of_kind(column, row))
            for (name, row, _), column in zip(large, room.columns, strict=True)
        ]
        return self._put

    def end(self) -> None:
        """No batch will be made of what was put last, or it has been made."""
        if self._room is not None:
            if not self._room.given_up:
                self._room.give_up()
            self._room = None

    def _put(self, number: int, sample: Any) -> Any:
        if type(sample) is tuple:
            return tuple(self._put_fields(number, list(sample)))
        if type(sample) is list or type(sample) is dict:
            return self._put_fields(number, sample.copy())
        return self._put_fields(number, {None: sample})[None]

    def _put_fields(self, number: int, values: Any) -> Any:
        for name, kind, shape, dtype, places in self._fields:
            try:
                row = values[name]
            except (LookupError, TypeError):
                continue  # a sample unlike the first, which is not for us to complain of
            if type(row) is kind and row.shape == shape and row.dtype == dtype and _is_plain(row):
                place = places[number]
                place[...] = row
                values[name] = place
        return values


class _Field(NamedTuple):
    name: Any
    kind: Any
    shape: Any
    dtype: Any
    places: Any


def _large_rows(sample: Any) -> Iterable[tuple[Any, Any, np.dtype[Any]]]:
    """Name, row and NumPy's dtype of each field that is worth it."""
    if type(sample) is tuple or type(sample) is list:
        fields: Iterable[tuple[Any, Any]] = enumerate(sample)
    elif type(sample) is dict:
        fields = sample.items()
    else:
        fields = [(None, sample)]
    for name, row in fields:
        if _is_plain(row) and row.nbytes >= LEAST_ROW_NBYTES:
            dtype = row.dtype if type(row) is np.ndarray else _TORCH_DTYPES.get(str(row.dtype))
            if dtype in FIXED_SIZE:
                yield name, row, dtype


def _is_plain(row: Any) -> bool:
    """Whether a row is an array, or a tensor of which a copy is as good."""
    if type(row) is np.ndarray:
        return True
    torch = sys.modules.get("torch")
    if torch is None or type(row) is not torch.Tensor:
        return False
    return bool(
        row.is_cpu
        and row.layout is torch.strided
        and not (row.is_nested or row.requires_grad or row.is_conj() or row.is_neg())
    )


def _of_kind(column: npt.NDArray[Any], row: Any) -> Any:
    """The column as rows like this one take it."""
    if type(row) is np.ndarray:
        return column
    import torch

    return torch.from_numpy(column)


_TORCH_DTYPES = {f"torch.{dtype.name}": dtype for dtype in FIXED_SIZE}
