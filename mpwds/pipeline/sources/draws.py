"""Random choices that are a function of what they are for, so that they need no state."""

from __future__ import annotations

import hashlib

from mpwds.pipeline.context import Context


class Draws:
    """Numbered random draws, the same each time for the same purpose, seed, epoch, rank and worker.

    Args:
        purpose: Tells these draws from others.
        facts: What they depend on.

    Example:
        >>> draws = Draws("shards", 7, "worker 0")
        >>> draws.index(0, 10) == draws.index(0, 10)
        True
    """

    def __init__(self, purpose: str, *facts: object) -> None:
        self._hash = hashlib.blake2b(repr((purpose, *facts)).encode(), digest_size=8)

    def index(self, number: int, count: int) -> int:
        """Draw ``number``, from 0 to ``count`` - 1, each as likely."""
        return self._bits(number) % count

    def fraction(self, number: int) -> float:
        """Draw ``number``, evenly from 0 to 1, 1 excluded."""
        return (self._bits(number) >> 11) / (1 << 53)

    def _bits(self, number: int) -> int:
        digest = self._hash.copy()
        digest.update(number.to_bytes(8, "little"))
        return int.from_bytes(digest.digest(), "little")


def worker_draws(purpose: str, context: Context, *facts: object) -> Draws:
    """Draws that differ from worker to worker, epoch to epoch and stage to stage.

    Example:
        >>> first, second = (worker_draws("x", Context(worker=worker, workers=2)) for worker in (0, 1))
        >>> [first.index(n, 100) for n in range(9)] == [second.index(n, 100) for n in range(9)]
        False
    """
    place = (context.seed or 0, context.moment, context.rank, context.worker, context.stage)
    return Draws(purpose, *place, *facts)
