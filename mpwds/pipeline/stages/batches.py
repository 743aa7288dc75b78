"""Base of the streams of batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpwds.pipeline.collation.collate import default_collation_fn, deferred_collation_fn
from mpwds.pipeline.collation.padded import Padded
from mpwds.pipeline.context import Context
from mpwds.pipeline.filter import Handled
from mpwds.pipeline.handlers import Handler
from mpwds.pipeline.notes import explain
from mpwds.pipeline.randomness import Call, seeded, unseeded
from mpwds.pipeline.stream import Address, Description, Stream, fetch_held

CollationFunction = Callable[[list[Any]], Any]


class Batches(Handled):
    """Base of the streams of batches. A batch's address is the tuple of its elements' addresses."""

    def __init__(
        self,
        source: Stream[Any],
        stage: object,
        collation_fn: CollationFunction | None,
        handler: Handler,
        context: Context,
    ) -> None:
        super().__init__(source, stage, handler)
        self._collate, self._call_collate = _how_to_collate(collation_fn, context)

    def _batch(self, held: Sequence[tuple[Address, Any]]) -> tuple[Address, Any] | None:
        """The batch of some elements; ``None`` if collation failed and the handler skips the batch."""
        addresses, elements = zip(*held, strict=True)
        try:
            return addresses, self._call_collate(self._collate, addresses, list(elements))
        except Exception as error:
            explain(error, self._stage, self, addresses)
            self._decide(error)
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


def check_collation_fn(stage: str, collation_fn: object) -> None:
    """Raises ``TypeError`` if ``collation_fn`` is neither callable nor ``None``."""
    if collation_fn is not None and not callable(collation_fn):
        raise TypeError(f"{stage}: collation_fn must be a function or None, got {collation_fn!r}")


def _how_to_collate(
    collation_fn: CollationFunction | None, context: Context
) -> tuple[CollationFunction, Call]:
    if collation_fn is None:
        return list, unseeded
    if collation_fn is default_collation_fn:
        return (deferred_collation_fn if context.deferred else collation_fn), unseeded
    if isinstance(collation_fn, Padded):
        return (collation_fn.deferred if context.deferred else collation_fn), unseeded
    return collation_fn, seeded(context)
