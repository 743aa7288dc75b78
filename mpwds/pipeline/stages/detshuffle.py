"""Shuffle a stream in the order that webdataset's ``detshuffle`` gives it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.counts import Count
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.stages.shuffle import Buffered
from mpwds.pipeline.stream import Address, Stream


def detshuffle(bufsize: int = 1000, initial: int = 100, seed: int = 0, epoch: int = -1) -> Detshuffle:
    """Stage that yields the elements in the random order that webdataset's ``detshuffle`` gives them.

    The order depends on ``seed + epoch`` alone, not on the dataset's seed, so all workers shuffle alike. Use
    it in pipelines that have to repeat the order they had in webdataset; otherwise ``shuffle``, which is as
    reproducible, gives each worker and each stage an order of its own.

    Args:
        bufsize: Elements held; below 2, the order stays as it is.
        initial: Elements to take in before the first is yielded; at most ``bufsize``.
        seed: With the epoch, determines the order.
        epoch: Number of the epoch before the first.

    Raises:
        TypeError: An argument is not an integer.

    Source:
        ``webdataset.filters.detshuffle``.

    Example:
        >>> list(detshuffle(4)(range(6)))
        [3, 4, 0, 1, 2, 5]
    """
    return Detshuffle(bufsize, initial, seed, epoch)


@dataclass(frozen=True)
class Detshuffle(Filter):
    """The stage that ``detshuffle`` makes."""

    bufsize: int = 1000
    initial: int = 100
    seed: int = 0
    epoch: int = -1

    def __post_init__(self) -> None:
        for name in ("bufsize", "initial", "seed", "epoch"):
            value = getattr(self, name)
            if not isinstance(value, Integral):
                raise TypeError(f"detshuffle: {name} must be a whole number, got {value!r}")

    def __str__(self) -> str:
        more = options(initial=(self.initial, 100), seed=(self.seed, 0), epoch=(self.epoch, -1))
        return f"detshuffle({arguments(self.bufsize, **more)})"

    def count_of(self, incoming: Count) -> Count:
        return incoming

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _DetShuffled(self, source, random.Random(self.seed + self.epoch + 1 + context.epoch))


class _DetShuffled(Buffered):
    def __init__(self, stage: Detshuffle, source: Stream[Any], rng: random.Random) -> None:
        super().__init__(source, rng)
        self._size = stage.bufsize
        self._initial = min(stage.initial, stage.bufsize)

    def __next__(self) -> tuple[Address, Any]:
        held = self._held
        try:
            while True:
                held.append(self._next())
                if len(held) < self._size:
                    held.append(self._next())
                if len(held) >= self._initial:
                    break
        except StopIteration:
            if not held:
                raise
        return self._take(self._rng.randint(0, len(held) - 1))
