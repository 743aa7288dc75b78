"""Pass on a part of the stream, by position."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.counts import Count
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.notes import arguments
from mpwds.pipeline.stream import Address, Derived, Stream


def slice(*args: int | None) -> Slice:
    """Stage that yields the elements that ``itertools.islice`` would: from ``start`` on, before ``stop``.

    Positions are counted in each worker and epoch. Nothing is read behind the last element that is yielded.

    Args:
        args: ``stop``; or ``start, stop``; or ``start, stop, step``. ``None`` stands for the beginning, the
            end, and steps of 1.

    Raises:
        TypeError: There are not one to three arguments, or one is not an integer.
        ValueError: An argument is negative, or ``step`` is 0.

    Source:
        ``webdataset.filters.slice``.

    Example:
        >>> list(slice(2)("abcde")), list(slice(1, None, 2)("abcde"))
        (['a', 'b'], ['b', 'd'])
    """
    if not 1 <= len(args) <= 3:
        raise TypeError(f"slice takes stop, or start, stop and step; got {len(args)} arguments")
    if len(args) == 1:
        return Slice(stop=args[0])
    start, stop, step = (*args, None)[:3]
    return Slice(0 if start is None else start, stop, 1 if step is None else step)


@dataclass(frozen=True)
class Slice(Filter):
    """The stage that ``slice`` makes."""

    start: int = 0
    stop: int | None = None
    step: int = 1

    def __post_init__(self) -> None:
        for name, value, least in (("start", self.start, 0), ("stop", self.stop, 0), ("step", self.step, 1)):
            if value is None and name == "stop":
                continue
            if not isinstance(value, Integral):
                raise TypeError(f"slice: {name} must be a whole number, got {value!r}")
            if value < least:
                raise ValueError(f"slice: {name} must be at least {least}, got {value}")

    def __str__(self) -> str:
        if self.step != 1:
            return f"slice({arguments(self.start, self.stop, self.step)})"
        return f"slice({arguments(*([self.start] if self.start else []), self.stop)})"

    def count_of(self, incoming: Count) -> Count:
        return Count(len(range(incoming.elements)[self.start : self.stop : self.step]))

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Sliced(self, source)


class _Sliced(Derived[Any]):
    def __init__(self, stage: Slice, source: Stream[Any]) -> None:
        super().__init__(source)
        self._stop = stage.stop
        self._step = stage.step
        self._position = 0  # of the source's next element
        self._wanted = stage.start

    def __next__(self) -> tuple[Address, Any]:
        if self._stop is not None and self._wanted >= self._stop:
            raise StopIteration
        while self._position < self._wanted:
            self._next()
            self._position += 1
        item: tuple[Address, Any] = self._next()
        self._position += 1
        self._wanted += self._step
        return item

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "position": self._position, "wanted": self._wanted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._position, self._wanted = state["position"], state["wanted"]
