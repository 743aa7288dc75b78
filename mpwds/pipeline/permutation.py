"""Random orders that are computed, not stored."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_ROUNDS = 16  # fewer leave some permutations of 5 numbers more likely than others
_WORD = (1 << 64) - 1

Words = TypeVar("Words", int, "npt.NDArray[np.uint64]")


class Permutation(Sequence[int]):
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
        >>> list(order)
        [5, 4, 3, 2, 9, 0, 6, 8, 1, 7]
        >>> order.of([0, 9])
        array([5, 7])
    """

    def __init__(self, n: int, *facts: object) -> None:
        self._n = n
        self._rows = math.isqrt(max(n - 1, 0)) + 1
        self._columns = -(-n // self._rows)
        digest = hashlib.shake_128(repr(facts).encode()).digest(8 * _ROUNDS)
        self._keys = struct.unpack(f"<{_ROUNDS}Q", digest)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, place: Any) -> Any:
        """The number at a place, which is not negative. Takes 6 us, and does not import NumPy."""
        if not 0 <= place < self._n:
            raise IndexError(f"there is no place {place} among {self._n}")
        number = self._permuted(place)
        while number >= self._n:
            number = self._permuted(number)
        return number

    def of(self, places: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """The numbers at some places. Takes 0.2 us each, if there are many."""
        import numpy as np

        numbers = self._permuted(np.array(places, np.uint64))
        while len(beyond := np.flatnonzero(numbers >= self._n)):
            numbers[beyond] = self._permuted(numbers[beyond])
        return numbers.astype(np.int64)

    def _permuted(self, places: Words) -> Words:
        left, right = places // self._columns, places % self._columns
        for round in range(0, _ROUNDS, 2):
            left = (left + _hash(right, self._keys[round])) % self._rows
            right = (right + _hash(left, self._keys[round + 1])) % self._columns
        return left * self._columns + right


def _hash(values: Words, key: int) -> Words:
    """63 random bits for each value, so that a sum with them stays below 2**64."""
    mixed: Any = (values * 0x9E3779B97F4A7C15 + key) & _WORD
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _WORD
    return (mixed ^ (mixed >> 31)) >> 1  # type: ignore[no-any-return]  # as its argument
