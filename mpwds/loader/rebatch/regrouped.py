"""``unbatched``, ``shuffle`` and ``batched`` behind a loader, by whole batches where their rows allow it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from mpwds.loader.rebatch.rebatched import Rebatched, RebatchedStream
from mpwds.pipeline.collation import FIXED_SIZE
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.iterator_streams import IteratorStream
from mpwds.pipeline.stream import Address, RowStep, Stream, WrappedStream


def regrouped(stages: Sequence[Any]) -> list[Any]:
    """The stages, with one in place of ``unbatched``, ``shuffle`` and ``batched`` at their end."""
    last = tuple(stages[-3:])
    steps: list[RowStep | None] = [stage.row_step for stage in last]
    if [step and step.kind for step in steps] != ["unbatch", "shuffle", "batch"]:
        return list(stages)
    arguments = {name: value for step in steps if step for name, value in step.arguments.items()}
    return [*stages[:-3], Regrouped(last, Rebatched(**arguments))]


@dataclass(frozen=True)
class Regrouped(Filter):
    """Stage that replaces ``unbatched``, ``shuffle`` and ``batched``, and works as ``rebatched`` does.

    A row that is a view of a batch keeps the whole batch in memory: behind a loader, a ``shuffle`` of rows
    would take five times their memory, copied out of the workers' blocks. Rows of arrays, tensors and lists
    of text are copied into a pool instead. The three stages run as they are if the first batch has other
    columns, and from the first batch that differs from those before it.

    The choice depends on the batches alone, because the two ways yield different orders: free memory, for
    example, must not change the order of an epoch.
    """

    stages: tuple[Any, ...]
    rebatched: Rebatched
    addressable = False

    def __str__(self) -> str:
        return ".".join(map(str, self.stages))

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Regrouped(self, source, context)

    def by_rows(self, source: Stream[Any], context: Context) -> Stream[Any]:
        """The stream of the three stages."""
        for stage in self.stages:
            source = stage.stream(source, context)
        return source


class _Regrouped(WrappedStream[Any]):
    def __init__(self, stage: Regrouped, source: Stream[Any], context: Context) -> None:
        self._stage = stage
        self._context = context
        self._alike = _Alike(source)
        self._by_batches: bool | None = None  # not known yet
        super().__init__(self._alike)

    def __next__(self) -> tuple[Address, Any]:
        if self._by_batches is None:
            self._begin(self._alike.can_be_pooled())
        try:
            return next(self._source)
        except _Unlike:
            # The three stages go on with the rows that are held, and the batches that still come.
            assert isinstance(self._source, RebatchedStream)
            batches = chain(self._source.rest(), (batch for _, batch in self._alike))
            self._begin(False, IteratorStream(batches, "behind batches that are unlike those before"))
            return next(self._source)

    def _begin(self, by_batches: bool, source: Stream[Any] | None = None) -> None:
        self._by_batches = self._alike.compares = by_batches
        if by_batches:
            self._source = RebatchedStream(self._stage.rebatched, self._alike, self._context)
        else:
            self._source = self._stage.by_rows(source or self._alike, self._context)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "by_batches": self._by_batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["by_batches"] is not None:
            self._begin(state["by_batches"])
        super().load_state_dict(state)


class _Unlike(Exception):
    """The next batch is unlike those before."""


class _Alike(WrappedStream[Any]):
    """The batches of a source, lists of columns as tuples. While ``compares`` is set, they must be alike."""

    def __init__(self, source: Stream[Any]) -> None:
        super().__init__(source)
        self._kept: list[tuple[Address, Any]] = []
        self._columns: list[Any] | None = None
        self.compares = True

    def can_be_pooled(self) -> bool:
        """True if there is a first batch, and all of its columns can be pooled."""
        try:
            self._kept.append(self._next())
        except StopIteration:
            return False
        self._columns = _columns(self._kept[0][1])
        return self._columns is not None

    def __next__(self) -> tuple[Address, Any]:
        address, batch = self._kept.pop() if self._kept else self._next()
        if self.compares:
            columns = _columns(batch)
            if self._columns is None:
                self._columns = columns
            elif columns != self._columns:
                self._kept.append((address, batch))
                raise _Unlike
        return address, tuple(batch) if type(batch) is list else batch

    def fetch(self, address: Any) -> Any:
        batch = super().fetch(address)
        return tuple(batch) if type(batch) is list else batch

    def state_dict(self) -> dict[str, Any]:
        if self._kept:
            raise LookupError("a batch was looked at and not taken")
        return super().state_dict()


def _columns(batch: Any) -> list[Any] | None:
    """A value that is equal for batches whose rows can be pooled together; ``None`` if they cannot be."""
    kind: Any = tuple if type(batch) is list else type(batch)
    columns = batch
    if kind is dict:
        kind, columns = tuple(batch), batch.values()
    elif kind is not tuple:
        columns = [batch]
    found, lengths = [kind], set()
    for column in columns:
        if _is_pooled(column):
            found.append((column.dtype, tuple(column.shape[1:])))
        elif type(column) is list and set(map(type, column)) <= _TEXT:
            found.append(list)
        else:
            return None
        lengths.add(len(column))
    return found if len(lengths) == 1 else None


def _is_pooled(column: Any) -> bool:
    if type(column) is np.ndarray:
        return column.ndim > 0 and column.dtype in FIXED_SIZE
    torch = sys.modules.get("torch")
    if torch is None or type(column) is not torch.Tensor:
        return False
    plain = (
        column.is_cpu and column.layout is torch.strided and not (column.is_nested or column.requires_grad)
    )
    return bool(plain and column.ndim > 0 and str(column.dtype) in _TORCH_NAMES)


_TEXT = frozenset({str, bytes})
_TORCH_NAMES = frozenset(f"torch.{dtype.name}" for dtype in FIXED_SIZE)
