"""Keep the elements that a predicate accepts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.notes import arguments, explain
from mpwds.pipeline.randomness import seeded
from mpwds.pipeline.stream import Address, Derived, Stream


@dataclass(frozen=True)
class Select:
    """Stage that yields the elements for which ``predicate`` is true, unchanged and in order.

    Args:
        predicate: Takes an element, returns whether to keep it.

    Raises:
        TypeError: ``predicate`` cannot be called.

    Example:
        >>> from mpwds.pipeline.stream import collect
        >>> collect(Select(lambda n: n % 2), range(6))
        [1, 3, 5]
    """

    predicate: Callable[[Any], Any]

    def __post_init__(self) -> None:
        if not callable(self.predicate):
            raise TypeError(f"select: expected a function, got {self.predicate!r}")

    def __str__(self) -> str:
        return f"select({arguments(self.predicate)})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Selected(self, source, context)


class _Selected(Derived[Any]):
    def __init__(self, stage: Select, source: Stream[Any], context: Context) -> None:
        super().__init__(source)
        self._stage = stage
        self._call = seeded(context)

    def __next__(self) -> tuple[Address, Any]:
        predicate = self._stage.predicate
        while True:
            item = self._next()
            address, element = item
            try:
                accepted = bool(self._call(predicate, address, element))
            except Exception as error:
                explain(error, self._stage, self._source, address)
                raise
            if accepted:
                return item
