"""Shuffle a stream through a bounded buffer: ``shuffle`` and ``detshuffle``."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.error_context import check_whole
from mpwds.pipeline.filter import PassThroughStage
from mpwds.pipeline.stream import Address, RowStep, Stream, WrappedStream, fetch_held
from mpwds.suggestions import suggest_arguments

_BUFSIZE = 1000


@suggest_arguments
def shuffle(
    bufsize: int = _BUFSIZE,
    initial: int = 100,
    rng: random.Random | None = None,
    seed: int | None = None,
    handler: object = None,
    *,
    total: int | None = None,
) -> Shuffle:
    """Stage that yields the elements in random order, through a buffer.

    For each element it takes in, the stage yields a random one of those it holds, so an element is displaced
    by about ``bufsize`` places. For more than local disorder, shuffle shards as well (``shardshuffle=True``).
    Put the stage before ``decode``, so that the buffer holds compressed bytes.

    Args:
        bufsize: Elements held, also as a float such as ``1e4``; below 2, the order stays unchanged.
        initial: Elements to take in before the first is yielded, at most ``bufsize``. After that the stage
            takes in two for each that it yields, until the buffer is full.
        rng: Random generator from which to draw the seed.
        seed: Determines the order, with the epoch, alike on all workers. The default is the dataset's seed,
            with another order for each worker and stage.
        handler: Without effect.
        total: Elements held by all streams of a job together, in place of ``bufsize`` for each of them. A
            loader has ``streams`` streams, by default one for each worker of each rank.

    Raises:
        TypeError: ``bufsize``, ``initial`` or ``total`` is not a whole number.
        ValueError: Both ``rng`` and ``seed`` are given, or both ``bufsize`` and ``total``, or ``total`` is
            below 1.

    Source:
        ``webdataset.filters.shuffle``.

    Example:
        >>> sorted(shuffle(4)(range(6)))
        [0, 1, 2, 3, 4, 5]
    """
    if rng is not None:
        if seed is not None:
            raise ValueError("shuffle: rng and seed both give the seed: pass one of them")
        seed = rng.getrandbits(32)
    if total is not None and bufsize != _BUFSIZE:
        raise ValueError("shuffle: bufsize and total both give the size of the buffer: pass one of them")
    size = max(_whole("size", bufsize), 1)
    if total is not None:
        size = total = _whole("total", total)
    return Shuffle(size, max(_whole("initial", initial), 1), seed, total)


@suggest_arguments
def detshuffle(bufsize: int = 1000, initial: int = 100, seed: int = 0, epoch: int = -1) -> Detshuffle:
    """Stage that yields the elements in the random order that webdataset's ``detshuffle`` gives them.

    The order depends on ``seed + epoch`` alone, so all workers shuffle alike. Where ``repeat`` or
    ``with_epoch`` runs the pipeline several times in an epoch, webdataset counts each run as an epoch, and
    only the first one has its order here. Where that order does not matter use ``shuffle``, which is as
    reproducible.

    Args:
        bufsize: Elements held; below 2, the order stays unchanged.
        initial: Elements to take in before the first is yielded; at most ``bufsize``.
        seed: Determines the order, with the epoch.
        epoch: Number of the epoch before the first.

    Source:
        ``webdataset.filters.detshuffle``.

    Example:
        >>> list(detshuffle(4)(range(6)))
        [3, 4, 0, 1, 2, 5]
    """
    return Detshuffle(bufsize, initial, seed, epoch)


@dataclass(frozen=True)
class Shuffle(PassThroughStage, called="shuffle"):
    passes_values = True
    size: int
    initial: int = 100
    seed: int | None = None
    total: int | None = None  # in place of size, of all streams together
    alike_before_split = True

    def __post_init__(self) -> None:
        check_whole("shuffle", "size", self.size, least=1)
        check_whole("shuffle", "initial", self.initial, least=1)
        check_whole("shuffle", "total", self.total or 1, least=1)

    @property
    def row_step(self) -> RowStep | None:
        arguments = {"shuffle": self.size, "initial": min(self.initial, self.size), "seed": self.seed}
        return RowStep("shuffle", arguments) if self.size > 1 and self.total is None else None

    def capacity(self, context: Context) -> int:
        if self.total is None:
            return self.size
        return max(1, self.total // (context.world_size * context.workers))

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        place: list[object] = [self.seed, context.alike_on_ranks().moment, context.stage]
        if self.seed is None:
            place = [context.seed or 0, context.moment, context.rank, context.worker, context.stage]
        rng = random.Random("shuffle/" + "/".join(map(str, place)))
        return _Shuffled(source, rng, self.capacity(context), self.initial)


class _Shuffled(WrappedStream[Any]):
    """The elements of a source in random order; ``by_range`` draws them as webdataset does, and slower."""

    _counters = ("_target",)

    def __init__(
        self, source: Stream[Any], rng: random.Random, size: int, initial: int, by_range: bool = False
    ) -> None:
        super().__init__(source)
        self._rng = rng
        self._by_range = by_range
        self._size = size
        self._held: list[tuple[Address, Any]] = []
        self._target = min(initial, size)  # elements to hold before the next is drawn

    def __next__(self) -> tuple[Address, Any]:
        held = self._held
        try:
            for _ in range(self._target - len(held)):
                held.append(self._next())
        except StopIteration:
            pass
        if not held:
            raise StopIteration
        count = len(held)
        self._target = count + 1 if count < self._size else count
        pick = self._rng.randrange(count) if self._by_range else int(self._rng.random() * count)
        held[pick], held[-1] = held[-1], held[pick]
        return held.pop()

    def state_dict(self) -> dict[str, Any]:
        version, words, gauss = self._rng.getstate()
        return {
            **super().state_dict(),
            "rng": [version, list(words), gauss],
            "held": [address for address, _ in self._held],
            "unused": None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        version, words, gauss = state["rng"]
        self._rng.setstate((version, tuple(words), gauss))
        self._held = fetch_held(self._source, state["held"])


@dataclass(frozen=True)
class Detshuffle(PassThroughStage, called="detshuffle"):
    passes_values = True
    bufsize: int
    initial: int = 100
    seed: int = 0
    epoch: int = -1

    def __post_init__(self) -> None:
        for name in ("bufsize", "initial", "seed", "epoch"):
            check_whole("detshuffle", name, getattr(self, name))

    def capacity(self, context: Context) -> int:
        return max(self.bufsize, 1)

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        rng = random.Random(self.seed + self.epoch + 1 + context.epoch)
        initial = max(2, self.initial + self.initial % 2)  # it takes in pairs, from the beginning
        return _Shuffled(source, rng, self.capacity(context), initial, by_range=True)


def _whole(name: str, value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    check_whole("shuffle", name, value)
    return int(value)
