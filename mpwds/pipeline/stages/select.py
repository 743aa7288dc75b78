"""Keep the elements that a predicate accepts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.handled import Handled
from mpwds.pipeline.handlers import Handler, check_handler, reraise_exception
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.randomness import seeded
from mpwds.pipeline.stream import Address, Stream


def select(predicate: Callable[[Any], Any], handler: Handler = reraise_exception) -> Select:
    """Stage that keeps the elements for which ``predicate`` is true, unchanged and in order.

    Args:
        predicate: Takes an element and returns whether to keep it.
        handler: What to do about an element that it fails on; raises by default.

    Raises:
        TypeError: ``predicate`` or ``handler`` cannot be called.

    Source:
        ``webdataset.filters.select``.

    Example:
        >>> list(select(lambda n: n % 2)(range(6)))
        [1, 3, 5]
    """
    return Select(predicate, handler)


@dataclass(frozen=True)
class Select(Filter):
    """The stage that ``select`` makes."""

    predicate: Callable[[Any], Any]
    handler: Handler = reraise_exception

    def __post_init__(self) -> None:
        if not callable(self.predicate):
            raise TypeError(f"select: expected a function, got {self.predicate!r}")
        check_handler("select", self.handler)

    def __str__(self) -> str:
        return f"select({arguments(self.predicate, **options(handler=(self.handler, reraise_exception)))})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Selected(self, source, context)


class _Selected(Handled):
    def __init__(self, stage: Select, source: Stream[Any], context: Context) -> None:
        super().__init__(source, stage, stage.handler)
        self._predicate = stage.predicate
        self._call = seeded(context)

    def __next__(self) -> tuple[Address, Any]:
        while True:
            item = self._next()
            address, element = item
            try:
                accepted = bool(self._call(self._predicate, address, element))
            except Exception as error:
                self._handle(error, address, element)
            else:
                if accepted:
                    return item
