"""Random permutations that are computed, not stored."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

_ROUNDS = 16  # fewer leave some permutations of 5 numbers more likely than others


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
