"""The orders in which an epoch reads indexed samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np

from mpwds.pipeline.context import Context
from mpwds.pipeline.indexed.permutation import Numbers, Permutation

Shuffling: TypeAlias = Literal["global", "chunked", "shards", False]

Order: TypeAlias = Callable[[Numbers], Numbers]
"""The positions, in the dataset, of the samples at some places of an epoch."""


def order_of(
    shuffle: Shuffling, samples: int, shard_starts: Callable[[], Numbers], chunksize: int, *facts: object
) -> Order:
    """The order of an epoch.

    Args:
        shuffle: ``"global"`` is a permutation of all samples. ``"chunked"`` cuts them into chunks, and reads
            these in random order, the samples of each in random order. ``"shards"`` reads shards in random
            order, the samples of each as they are stored. ``False`` reads all as they are stored.
        samples: Samples in the dataset.
        shard_starts: Returns the positions at which shards begin, the first being 0.
        chunksize: Samples of a chunk.
        facts: What the order depends on: seed, epoch, ...

    Example:
        >>> order_of("chunked", 9, lambda: np.array([0]), 3, "a seed")(np.arange(9))
        array([2, 0, 1, 6, 7, 8, 5, 4, 3])
    """
    if shuffle == "global":
        return Permutation(samples, "global", *facts).of
    if shuffle == "chunked":
        starts: Numbers = np.arange(0, samples, chunksize)
        return _Pieces(starts, samples, True, facts).of
    if shuffle == "shards":
        return _Pieces(shard_starts(), samples, False, facts).of
    return lambda places: places


def check_shuffling(shuffle: Shuffling) -> None:
    """Raises ``ValueError`` if ``shuffle`` is not one of those that there are."""
    if shuffle not in get_args(Shuffling) or (shuffle == 0 and shuffle is not False):
        kinds = ", ".join(map(repr, get_args(Shuffling)))
        raise ValueError(f"shuffle must be one of {kinds}, got {shuffle!r}")


def places_of(shuffle: Shuffling, samples: int, context: Context) -> range:
    """The places of an epoch whose samples a worker reads; each belongs to one worker of one rank.

    Workers take every n-th place of a global order, so that it does not depend on their number. In other
    orders each takes places side by side, so that few of them read the same shard.

    Example:
        >>> places_of("shards", 10, Context(rank=1, world_size=2, worker=0, workers=2))
        range(5, 7)
    """
    if shuffle == "global":
        return range(samples)[context.rank :: context.world_size][context.worker :: context.workers]
    return _part(_part(range(samples), context.rank, context.world_size), context.worker, context.workers)


def _part(places: range, number: int, of: int) -> range:
    return places[len(places) * number // of : len(places) * (number + 1) // of]


class _Pieces:
    """Order of pieces of consecutive samples, such as shards, in random order."""

    def __init__(self, starts: Numbers, samples: int, shuffles_inside: bool, facts: Sequence[object]) -> None:
        pieces = Permutation(len(starts), "pieces", *facts).of(np.arange(len(starts)))
        sizes = np.diff(starts, append=samples)[pieces]
        self._ends = np.cumsum(sizes)  # places
        self._shifts = starts[pieces] - (self._ends - sizes)  # from a place to its position
        self._shuffles_inside = shuffles_inside
        self._facts = facts

    def of(self, places: Numbers) -> Numbers:
        pieces = np.searchsorted(self._ends, places, "right")
        if not self._shuffles_inside:
            shifted: Numbers = places + self._shifts[pieces]
            return shifted
        positions = np.empty_like(places)
        for piece in np.unique(pieces).tolist():
            here = pieces == piece
            start = self._ends[piece - 1] if piece else 0
            inside = Permutation(int(self._ends[piece] - start), "inside", piece, *self._facts)
            positions[here] = inside.of(places[here] - start) + start + self._shifts[piece]
        return positions
