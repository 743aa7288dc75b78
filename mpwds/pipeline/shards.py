"""Which shards a worker reads in an epoch, and in which order."""

from __future__ import annotations

import random

from mpwds.pipeline.context import Context


def assigned_shards(count: int, shuffled: bool, context: Context) -> list[int]:
    """The numbers of the shards that this worker of this rank reads, in order.

    All ranks and workers shuffle alike, by seed and epoch; then the shards are dealt to the ranks, and a
    rank's to its workers. So over all of them each shard is read exactly once.

    Args:
        count: Number of shards in all.
        shuffled: Whether to shuffle them; else they are dealt in order.
        context: Epoch, seed, rank and worker.

    Example:
        >>> [assigned_shards(5, False, Context(worker=w, workers=2)) for w in (0, 1)]
        [[0, 2, 4], [1, 3]]
    """
    numbers = list(range(count))
    if shuffled:
        random.Random(f"shards/{context.seed or 0}/{context.epoch}").shuffle(numbers)
    return numbers[context.rank :: context.world_size][context.worker :: context.workers]
