"""Gather elements into batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from typing import Any

from mpwds.pipeline.collate import default_collation_fn, deferred_collation_fn
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.notes import arguments, explain
from mpwds.pipeline.place import Place
from mpwds.pipeline.randomness import Call, seeded, unseeded
from mpwds.pipeline.stream import Address, Derived, Stream, fetch_held


def batched(
    batchsize: int = 20,
    collation_fn: Callable[[Any], Any] | None = default_collation_fn,
    partial: bool = True,
) -> Batched:
    """Stage that gathers elements into batches.

    Args:
        batchsize: Elements per batch.
        collation_fn: Makes the batch from the list of elements; ``None`` leaves it a list.
        partial: Whether what remains at the end makes a smaller batch; else it is dropped.

    Raises:
        ValueError: ``batchsize`` is below 1.

    Example:
        >>> list(batched(2)([(1, "a"), (2, "b"), (3, "c")]))
        [(array([1, 2]), ['a', 'b']), (array([3]), ['c'])]
    """
    return Batched(batchsize, collation_fn, partial)


@dataclass(frozen=True)
class Batched(Filter):
    """Stage that yields each ``batchsize`` successive elements as one batch.

    Args:
        batchsize: Elements per batch.
        collation_fn: Makes the batch from the list of elements; ``None`` leaves it a list.
        partial: Whether what remains at the end makes a smaller batch; else it is dropped.

    Raises:
        ValueError: ``batchsize`` is below 1.
        TypeError: ``batchsize`` is no whole number, or ``collation_fn`` cannot be called.

    Example:
        >>> from mpwds.pipeline.stream import collect
        >>> collect(Batched(2), [(1, "a"), (2, "b"), (3, "c")])
        [(array([1, 2]), ['a', 'b']), (array([3]), ['c'])]
    """

    batchsize: int = 20
    collation_fn: Callable[[Any], Any] | None = default_collation_fn
    partial: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.batchsize, Integral):
            raise TypeError(f"batched: batchsize must be a whole number, got {self.batchsize!r}")
        if self.batchsize < 1:
            raise ValueError(f"batched: batchsize must be at least 1, got {self.batchsize}")
        if self.collation_fn is not None and not callable(self.collation_fn):
            raise TypeError(f"batched: collation_fn must be a function or None, got {self.collation_fn!r}")

    def __str__(self) -> str:
        options: dict[str, object] = {}
        if self.collation_fn is not default_collation_fn:
            options["collation_fn"] = self.collation_fn
        if not self.partial:
            options["partial"] = False
        return f"batched({arguments(self.batchsize, **options)})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        if self.collation_fn is None:
            return _Batches(self, source, list, unseeded)
        if self.collation_fn is not default_collation_fn:
            return _Batches(self, source, self.collation_fn, seeded(context))
        collation_fn = deferred_collation_fn if context.deferred else default_collation_fn
        return _Batches(self, source, collation_fn, unseeded)


class _Batches(Derived[Any]):
    def __init__(
        self, stage: Batched, source: Stream[Any], collation_fn: Callable[[Any], Any], call: Call
    ) -> None:
        super().__init__(source)
        self._stage = stage
        self._size = stage.batchsize
        self._collation_fn = collation_fn
        self._call = call
        self._held: list[tuple[Address, Any]] = []

    def __next__(self) -> tuple[Address, Any]:
        held = self._held
        for item in islice(self._source, self._size - len(held)):
            held.append(item)  # one by one: what an error interrupts is kept
        self._held = []
        if not held or (len(held) < self._size and not self._stage.partial):
            raise StopIteration
        addresses, elements = zip(*held, strict=True)
        return addresses, self._make(addresses, list(elements))

    def fetch(self, address: Any) -> Any:
        return self._make(address, [element for _, element in fetch_held(self._source, address)])

    def describe(self, address: Any, element: object = None) -> Place:
        first, last = self._source.describe(address[0]), self._source.describe(address[-1])
        if len(address) == 1:
            return first.row_of("a batch")
        return Place(f"a batch of {len(address)}, from {first} to {last}", first.url)

    def state_dict(self) -> dict[str, Any]:
        return {"source": self._source.state_dict(), "held": [address for address, _ in self._held]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._source.load_state_dict(state["source"])
        self._held = fetch_held(self._source, state["held"])

    def _make(self, address: Any, elements: list[Any]) -> Any:
        try:
            return self._call(self._collation_fn, address, elements)
        except Exception as error:
            explain(error, self._stage, self, address)
            raise
