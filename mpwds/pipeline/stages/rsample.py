"""Keep a random share of the elements."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.stream import Address, Derived, Stream


def rsample(p: float = 0.5) -> RSample:
    """Stage that keeps each element with probability ``p``, unchanged and in order.

    The choice depends on the dataset's seed, the epoch, the stage's place in the pipeline and the element's
    address:
    each epoch keeps other elements, and an epoch keeps the same ones each time it runs, with any number of
    workers.

    Args:
        p: From 0 (no element) to 1 (all).

    Raises:
        ValueError: ``p`` is outside of that range.

    Source:
        ``webdataset.filters.rsample``.

    Example:
        >>> 400 < len(list(rsample(0.5)(range(1000)))) < 600
        True
    """
    return RSample(p)


@dataclass(frozen=True)
class RSample(Filter):
    """The stage that ``rsample`` makes."""

    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise ValueError(f"rsample: p is a probability, from 0 to 1; got {self.p}")

    def __str__(self) -> str:
        return f"rsample({self.p!r})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Sampled(self, source, context)


class _Sampled(Derived[Any]):
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
