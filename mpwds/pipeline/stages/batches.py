"""Batches of a fixed number of elements, and the base of all streams of batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.collation.collate import default_collation_fn, deferred_collation_fn
from mpwds.pipeline.collation.padded import Padded
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.error_context import check_whole, explain
from mpwds.pipeline.filter import DataclassStage, Retrying, rows_in
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.randomness import Call, seeded, unseeded
from mpwds.pipeline.stream import Address, Count, Description, RowStep, Stream, fetch_held
from mpwds.suggestions import shown

CollationFunction = Callable[[list[Any]], Any]


class Batching(DataclassStage):
    """Base of the stages that make batches."""

    collation_fn: CollationFunction | None
    handler: Handler

    samples_in = staticmethod(rows_in)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.collation_fn is not None and not callable(self.collation_fn):
            raise TypeError(
                f"{self.called}: collation_fn must be a function or None, got {shown(self.collation_fn)}"
            )


@dataclass(frozen=True)
class Batched(Batching, called="batched"):
    batchsize: int
    collation_fn: CollationFunction | None = default_collation_fn
    partial: bool = True
    handler: Handler = reraise_exception

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("batched", "batchsize", self.batchsize, least=1)

    def count_of(self, incoming: Count) -> Count:
        if self.handler is not reraise_exception:
            return super().count_of(incoming)
        count = incoming.batched(self.batchsize, self.partial)
        keeps_rows = self.collation_fn is default_collation_fn or isinstance(self.collation_fn, Padded)
        return count if keeps_rows else Count(count.elements)

    @property
    def row_step(self) -> RowStep | None:
        if self.collation_fn is not default_collation_fn or self.handler is not reraise_exception:
            return None
        return RowStep("batch", {"batchsize": self.batchsize, "drop_last": not self.partial})

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Counted(self, source, context)


class Batches(Retrying):
    """Base of the streams of batches. A batch's address is the tuple of its elements' addresses."""

    def __init__(self, source: Stream[Any], stage: Batching, context: Context) -> None:
        super().__init__(source, stage, stage.handler)
        self._collate, self._call_collate = _how_to_collate(stage.collation_fn, context)

    def _batch(self, held: Sequence[tuple[Address, Any]]) -> tuple[Address, Any] | None:
        """The batch of some elements; ``None`` if collation failed and the handler skips the batch."""
        addresses, elements = zip(*held, strict=True)
        try:
            return addresses, self._call_collate(self._collate, addresses, list(elements))
        except Exception as error:
            failed, self._failed = self._failed, [*self._failed, *addresses]
            explain(error, self._stage, self, addresses)
            self._decide(error)
            self._failed = failed  # the handler skips the batch
            return None

    def fetch(self, address: Any) -> Any:
        elements = [element for _, element in fetch_held(self._source, address)]
        try:
            return self._call_collate(self._collate, address, elements)
        except Exception as error:
            explain(error, self._stage, self, address)
            raise

    def describe(self, address: Any, element: object = None) -> Description:
        first, last = self._source.describe(address[0]), self._source.describe(address[-1])
        if len(address) == 1:
            return first.row_of("a batch")
        return Description(f"a batch of {len(address)}, from {first} to {last}", first.url)


class _Counted(Batches):
    def __init__(self, stage: Batched, source: Stream[Any], context: Context) -> None:
        super().__init__(source, stage, context)
        self._size = stage.batchsize
        self._partial = stage.partial
        self._held: list[tuple[Address, Any]] = []

    def __next__(self) -> tuple[Address, Any]:
        while True:
            held = self._held  # filled one by one: elements taken before an error are kept
            try:
                for _ in range(self._size - len(held)):
                    held.append(self._next())
            except StopIteration:
                if not held or not self._partial:
                    self._held = []
                    raise
            self._held = []
            batch = self._batch(held)
            if batch is not None:
                return batch

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return {**state, "held": [*(address for address, _ in self._held), *state["held"]]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._held = []


def _how_to_collate(function: CollationFunction | None, context: Context) -> tuple[CollationFunction, Call]:
    if function is None:
        return list, unseeded
    if function is default_collation_fn:
        return (deferred_collation_fn if context.deferred else function), unseeded
    if isinstance(function, Padded):
        return (function.deferred if context.deferred else function), unseeded
    return function, seeded(context)
