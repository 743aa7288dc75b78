"""Gather elements into batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from mpwds.pipeline.collation.collate import default_collation_fn
from mpwds.pipeline.collation.padded import Padded
from mpwds.pipeline.collation.rows_in_place import RowsInPlace
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.counts import Count, check_raises, rows_in
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.handlers import Handler, check_handler, reraise_exception
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.stages.batched_by_size import BatchedBySize, size_in_bytes
from mpwds.pipeline.stages.batches import Batches, CollationFunction, check_collation_fn
from mpwds.pipeline.stream import Address, Stream, fetch_held


def batched(
    batchsize: int | None = None,
    collation_fn: CollationFunction | None = default_collation_fn,
    partial: bool = True,
    *,
    max_bytes: int | None = None,
    by: Callable[[Any], float] | None = None,
    max_total: float | None = None,
    include_padding: bool = False,
    handler: Handler = reraise_exception,
) -> Batched | BatchedBySize:
    """Stage that gathers successive elements into batches, of a fixed number or of a limited size.

    Args:
        batchsize: Elements per batch: 20 by default; where the size is limited, the most elements that a
            batch may have, as many as fit by default.
        collation_fn: Makes the batch from the list of elements; ``None`` leaves it a list. ``mpwds.padded()``
            pads arrays of different shapes.
        partial: Whether what remains at the end makes a smaller batch; else it is dropped.
        max_bytes: The most bytes that the data of a batch may have.
        by: Measures an element, its number of tokens for example.
        max_total: The most that the measures of a batch's elements may come to.
        include_padding: Whether each element of a batch counts like its largest one, as once it is padded.
        handler: What to do about a batch that cannot be made, or an element that cannot be measured; raises
            by default.

    Raises:
        ValueError: ``batchsize`` or a limit is not above 0, or ``by`` goes without ``max_total`` or together
            with ``max_bytes``.
        TypeError: One is no number, or a function cannot be called.

    Source:
        ``webdataset.filters.batched``, for all but the limits of size.

    Example:
        >>> list(batched(2)([(1, "a"), (2, "b"), (3, "c")]))
        [(array([1, 2]), ['a', 'b']), (array([3]), ['c'])]
        >>> list(batched(by=len, max_total=4, collation_fn=None)(["ab", "cd", "efg", "h"]))
        [['ab', 'cd'], ['efg', 'h']]
    """
    if max_bytes is None and by is None and max_total is None:
        if include_padding:
            raise ValueError("batched: include_padding says how max_total is counted, so it goes with by=")
        return Batched(20 if batchsize is None else batchsize, collation_fn, partial, handler)
    if max_bytes is not None:
        if by is not None or max_total is not None:
            raise ValueError("batched: pass max_bytes, or by and max_total")
        by, max_total = size_in_bytes, max_bytes
    if by is None or max_total is None:
        raise ValueError("batched: by measures an element and max_total limits the sum: pass both")
    return BatchedBySize(by, max_total, batchsize, collation_fn, partial, include_padding, handler)


@dataclass(frozen=True)
class Batched(Filter):
    """Stage that yields each ``batchsize`` successive elements as one batch.

    Args:
        batchsize: Elements per batch.
        collation_fn: Makes the batch from the list of elements; ``None`` leaves it a list.
        partial: Whether what remains at the end makes a smaller batch; else it is dropped.
        handler: What to do about a batch that cannot be made; raises by default. Going on leaves out all
            elements of the batch.

    Raises:
        ValueError: ``batchsize`` is below 1.
        TypeError: ``batchsize`` is no whole number, or ``collation_fn`` or ``handler`` cannot be called.

    Example:
        >>> from mpwds.pipeline.stream import collect
        >>> collect(Batched(2), [(1, "a"), (2, "b"), (3, "c")])
        [(array([1, 2]), ['a', 'b']), (array([3]), ['c'])]
    """

    batchsize: int = 20
    collation_fn: CollationFunction | None = default_collation_fn
    partial: bool = True
    handler: Handler = reraise_exception

    samples_in = staticmethod(rows_in)

    def __post_init__(self) -> None:
        if not isinstance(self.batchsize, Integral):
            raise TypeError(f"batched: batchsize must be a whole number, got {self.batchsize!r}")
        if self.batchsize < 1:
            raise ValueError(f"batched: batchsize must be at least 1, got {self.batchsize}")
        check_collation_fn("batched", self.collation_fn)
        check_handler("batched", self.handler)

    def __str__(self) -> str:
        more = options(
            collation_fn=(self.collation_fn, default_collation_fn),
            partial=(self.partial, True),
            handler=(self.handler, reraise_exception),
        )
        return f"batched({arguments(self.batchsize, **more)})"

    def count_of(self, incoming: Count) -> Count:
        check_raises(self, self.handler)
        count = incoming.batched(self.batchsize, self.partial)
        keeps_rows = self.collation_fn is default_collation_fn or isinstance(self.collation_fn, Padded)
        return count if keeps_rows else Count(count.elements)

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Counted(self, source, context)


class _Counted(Batches):
    def __init__(self, stage: Batched, source: Stream[Any], context: Context) -> None:
        super().__init__(source, stage, stage.collation_fn, stage.handler, context)
        self._size = stage.batchsize
        self._partial = stage.partial
        self._held: list[tuple[Address, Any]] = []
        self._in_place: RowsInPlace | None = None
        if context.deferred and context.find_room and stage.collation_fn is default_collation_fn:
            self._in_place = RowsInPlace(context.find_room)

    def __next__(self) -> tuple[Address, Any]:
        while True:
            try:
                self._gather()
            except StopIteration:
                if not self._held or not self._partial:
                    self._held = []
                    if self._in_place is not None:
                        self._in_place.end()
                    raise
            held, self._held = self._held, []
            batch = self._batch(held)
            if batch is not None:
                return batch

    def _gather(self) -> None:
        """Fills up what is held, one by one: what an error interrupts is kept."""
        held = self._held
        put = None
        if self._in_place is not None and not held:
            address, element = self._next()
            put = self._in_place.begin(element, self._size)
            held.append((address, element if put is None else put(0, element)))
        if put is None:
            for _ in range(self._size - len(held)):
                held.append(self._next())
        else:
            for number in range(1, self._size):
                address, element = self._next()
                held.append((address, put(number, element)))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "held": [address for address, _ in self._held]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._held = fetch_held(self._source, state["held"])
