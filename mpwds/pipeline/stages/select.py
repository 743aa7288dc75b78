"""Drop elements: ``select``, ``rsample`` and ``slice``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.error_context import arguments, check_whole
from mpwds.pipeline.filter import DataclassStage, Retrying
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.randomness import seeded
from mpwds.pipeline.stream import Address, Count, EveryNth, Stream, WrappedStream
from mpwds.suggestions import suggest_arguments


@suggest_arguments
def select(predicate: Callable[[Any], Any], handler: Handler = reraise_exception) -> Select:
    """Stage that keeps the elements for which ``predicate`` is true, unchanged and in order.

    Args:
        predicate: Takes an element and returns whether to keep it.
        handler: Called when ``predicate`` raises an exception; the default raises it.

    Source:
        ``webdataset.filters.select``.

    Example:
        >>> list(select(lambda n: n % 2)(range(6)))
        [1, 3, 5]
    """
    return Select(predicate, handler)


@suggest_arguments
def rsample(p: float = 0.5) -> RSample:
    """Stage that keeps each element with probability ``p``, unchanged and in order.

    The choice depends on the dataset's seed, the epoch, the stage's position in the pipeline and the
    element's address. So an epoch that runs again keeps the same elements, with any number of workers.

    Args:
        p: From 0 (no element) to 1 (all).

    Raises:
        ValueError: ``p`` is below 0 or above 1.

    Source:
        ``webdataset.filters.rsample``.

    Example:
        >>> 400 < len(list(rsample(0.5)(range(1000)))) < 600
        True
    """
    return RSample(p)


@suggest_arguments
def slice(*args: int | None) -> Slice:
    """Stage that yields the elements from ``start`` up to but excluding ``stop``, as ``itertools.islice``.

    Each worker counts positions by itself, from 0 in each epoch. The stage reads nothing after the last
    element that it yields.

    Args:
        args: ``stop``; or ``start, stop``; or ``start, stop, step``, where ``None`` stands for the default.

    Raises:
        TypeError: The arguments are not one to three integers.
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
class Select(DataclassStage, called="select"):
    function: Callable[[Any], Any]
    handler: Handler = reraise_exception

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Selected(source, self, context)


class _Selected(Retrying):
    def __init__(self, source: Stream[Any], stage: Select, context: Context) -> None:
        super().__init__(source, stage, stage.handler)
        self._predicate = stage.function
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


@dataclass(frozen=True)
class RSample(DataclassStage, called="rsample"):
    p: float
    alike_before_split = True

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise ValueError(f"rsample: p is a probability, from 0 to 1; got {self.p}")

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Sampled(self, source, context)


class _Sampled(WrappedStream[Any]):
    def __init__(self, stage: RSample, source: Stream[Any], context: Context) -> None:
        super().__init__(source)
        place = ("rsample", context.seed or 0, context.moment, context.stage)
        self._origin = hashlib.blake2b(repr(place).encode(), digest_size=8)
        self._below = int(stage.p * 2**64)

    def __next__(self) -> tuple[Address, Any]:
        while True:
            item = self._next()
            digest = self._origin.copy()
            digest.update(repr(item[0]).encode())
            if int.from_bytes(digest.digest(), "little") < self._below:
                return item


@dataclass(frozen=True)
class Slice(DataclassStage, called="slice"):
    start: int = 0
    stop: int | None = None
    step: int = 1

    def __post_init__(self) -> None:
        check_whole("slice", "start", self.start, least=0)
        check_whole("slice", "step", self.step, least=1)
        check_whole("slice", "stop", 0 if self.stop is None else self.stop, least=0)

    def __str__(self) -> str:
        if self.step != 1:
            return f"slice({arguments(self.start, self.stop, self.step)})"
        return f"slice({arguments(*([self.start] if self.start else []), self.stop)})"

    def count_of(self, incoming: Count) -> Count:
        return Count(len(range(incoming.elements)[self.start : self.stop : self.step]))

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return EveryNth(source, self.start, self.stop, self.step)
