"""The orders in which an epoch reads indexed samples, by permutations that are computed, not stored."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from mpwds.pipeline.context import Context

Numbers = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]
Shuffling: TypeAlias = Literal["global", "chunked", "shards", False]

Order: TypeAlias = Callable[[Numbers], Numbers]
"""The positions, in the dataset, of the samples at some places of an epoch."""

_ROUNDS = 16  # of a permutation; fewer leave some permutations of 5 numbers more likely than others


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


def worker_positions(shuffle: Shuffling, samples: int, context: Context) -> range:
    """The places of an epoch whose samples a worker reads; each belongs to one worker of one rank.

    Workers take every n-th place of a global order, so that it does not depend on their number. In other
    orders each takes places side by side, so that few of them read the same shard.

    Example:
        >>> worker_positions("shards", 10, Context(rank=1, world_size=2, worker=0, workers=2))
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


class Permutation:
    """A random permutation of the numbers below ``n``, of constant size in memory.

    A Feistel network permutes a grid of ``rows * columns >= n`` places: each round shifts a place along one
    axis by a hash of its other coordinate. A place beyond ``n`` is permuted again until it is below ``n``
    (cycle walking); the grid has fewer than ``rows`` places too many, so that is rare.

    Args:
        n: How many numbers, at least 0.
        facts: What the permutation depends on: purpose, seed, epoch, ...

    Source:
        J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002: their generalized
        Feistel construction. The hash of a round is the finalizer of SplitMix64.

    Example:
        >>> order = Permutation(10, "example", 0)
        >>> order.of(np.arange(10))
        array([5, 4, 3, 2, 9, 0, 6, 8, 1, 7])
    """

    def __init__(self, n: int, *facts: object) -> None:
        self.n = n
        self._rows = math.isqrt(max(n - 1, 0)) + 1
        self._columns = -(-n // self._rows)
        digest = hashlib.shake_128(repr(facts).encode()).digest(8 * _ROUNDS)
        self._keys = np.frombuffer(digest, np.uint64)

    def of(self, places: npt.ArrayLike) -> Numbers:
        """The numbers at some places, which are below ``n`` too. Takes 0.1 us each, if there are many."""
        numbers = self._permuted(np.array(places, np.uint64))
        while len(beyond := np.flatnonzero(numbers >= self.n)):
            numbers[beyond] = self._permuted(numbers[beyond])
        return numbers.astype(np.int64)

    def _permuted(self, places: _Words) -> _Words:
        left, right = np.divmod(places, np.uint64(self._columns))
        rows, columns = np.uint64(self._rows), np.uint64(self._columns)
        for first, second in self._keys.reshape(-1, 2):
            left = (left + _hash(right, first)) % rows
            right = (right + _hash(left, second)) % columns
        result: _Words = left * columns + right
        return result


def _hash(values: _Words, key: np.uint64) -> _Words:
    """63 random bits for each value, so that a sum with them stays below 2**64."""
    mixed: _Words = values * np.uint64(0x9E3779B97F4A7C15) + key
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    mixed >>= np.uint64(1)
    return mixed
