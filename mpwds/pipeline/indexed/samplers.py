"""Samplers for map-style datasets of shards: random orders that keep to few shards at a time."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

from mpwds.pipeline.context import pytorch_worker_info
from mpwds.pipeline.error_context import check_whole
from mpwds.warn import warn

_EPOCH_STEP = 1289738273  # of the seed, as in wids
_WHOLE_CHUNK = 1_000_000

Ranges = Sequence[tuple[int, int]]


class _RangeSampler:
    """Yields the numbers in some ranges. Each complete iteration is an epoch, of another order."""

    def __init__(self, ranges: Ranges, seed: int, shuffles: bool, shufflefirst: bool) -> None:
        self.ranges = ranges
        self.seed = seed
        self.shuffle = shuffles
        self.shufflefirst = shufflefirst
        self.epoch = 0

    def __len__(self) -> int:
        return sum(end - start for start, end in self.ranges)

    def __iter__(self) -> Iterator[int]:
        rng = random.Random(self.seed + _EPOCH_STEP * self.epoch)
        order = list(self.ranges)
        if self.shuffle and (self.shufflefirst or self.epoch > 0):
            rng.shuffle(order)
        for start, end in order:
            numbers = list(range(start, end))
            if self.shuffle:
                rng.shuffle(numbers)
            yield from numbers
        self.epoch += 1

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration that of ``epoch``."""
        self.epoch = epoch


class ShardListSampler(_RangeSampler):
    """Sampler of shard after shard: the samples of each in random order.

    The shards are in random order, too, except in epoch 0, where fetching in the order of the list is usual.
    Each complete iteration counts as an epoch. A DataLoader's workers read from the same shard at a time.

    Args:
        dataset: A dataset with the numbers of samples in its shards as ``lengths``.
        lengths: These numbers, in place of the dataset's.
        seed: With the epoch, determines the order.
        shufflefirst: Whether to shuffle the shards in epoch 0.

    Source:
        ``wids.ShardListSampler``, also named ``wids.ShardedSampler``: the same seed and epoch give the same
        order. It has no ``len()`` and no ``set_epoch`` there.

    Example:
        >>> list(ShardListSampler(None, lengths=[3, 2]))
        [0, 2, 1, 4, 3]
    """

    def __init__(
        self, dataset: Any, *, lengths: Iterable[int] | None = None, seed: int = 0, shufflefirst: bool = False
    ) -> None:
        ranges, start = [], 0
        for length in dataset.lengths if lengths is None else lengths:
            ranges.append((start, start + length))
            start += length
        super().__init__(ranges, seed, True, shufflefirst)


ShardedSampler = ShardListSampler


class ChunkedSampler(_RangeSampler):
    """Sampler of chunk after chunk of consecutive samples: those of each in random order.

    The chunks are in random order, too, except in epoch 0. Each complete iteration counts as an epoch.

    Args:
        dataset: A map-style dataset.
        num_samples: How many of its samples, from the first on, or a pair: those from one number up to
            another. All by default.
        chunksize: Samples in a chunk, at least 1.
        seed: With the epoch, determines the order.
        shuffle: Whether to shuffle at all.
        shufflefirst: Whether to shuffle the chunks in epoch 0.

    Raises:
        ValueError: ``chunksize`` is below 1.

    Source:
        ``wids.ChunkedSampler``: the same seed and epoch give the same order. There the first ``num_samples``
        may include numbers of samples that do not exist.

    Example:
        >>> list(ChunkedSampler(range(6), chunksize=3))
        [0, 2, 1, 5, 4, 3]
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        num_samples: int | tuple[int, int] | None = None,
        chunksize: int = 2000,
        seed: int = 0,
        shuffle: bool = True,
        shufflefirst: bool = False,
    ) -> None:
        check_whole("ChunkedSampler", "chunksize", chunksize, least=1)
        num_samples = len(dataset) if num_samples is None else num_samples
        first, end = (0, num_samples) if isinstance(num_samples, int) else num_samples
        ranges = [(start, min(start + chunksize, end)) for start in range(first, end, chunksize)]
        super().__init__(ranges, seed, shuffle, shufflefirst)


def DistributedChunkedSampler(
    dataset: Sized,
    *,
    num_replicas: int | None = None,
    num_samples: int | None = None,
    rank: int | None = None,
    shuffle: bool = True,
    shufflefirst: bool = False,
    seed: int = 0,
    drop_last: bool | None = None,
    chunksize: int = _WHOLE_CHUNK,
) -> ChunkedSampler:
    """A ``ChunkedSampler`` of one rank's part of a dataset: consecutive samples, in shards of its own.

    All parts have the same number of samples, but for the last, which may have fewer.

    Args:
        dataset: A map-style dataset.
        num_replicas: The number of ranks; by default that of ``torch.distributed``, or ``WORLD_SIZE``.
        num_samples: How many of the dataset's samples to divide; all by default.
        rank: This process, from 0; by default as ``num_replicas``.
        drop_last: Has no effect.
        shuffle, shufflefirst, seed, chunksize: As for ``ChunkedSampler``.

    Raises:
        ValueError: ``rank`` is not below ``num_replicas``.

    Source:
        ``wids.DistributedChunkedSampler``, where ``rank`` and ``num_replicas`` count only if
        ``torch.distributed`` is initialized.

    Example:
        >>> sampler = DistributedChunkedSampler(range(10), num_replicas=3, rank=2)
        >>> sorted(sampler)
        [8, 9]
    """
    if drop_last is not None:
        warn("DistributedChunkedSampler: drop_last has no effect")
    own_rank, world_size, _, _ = pytorch_worker_info()
    if num_replicas is None and rank is None and world_size == 1:
        warn("DistributedChunkedSampler: torch.distributed is not initialized, so this is the only process")
    num_replicas = world_size if num_replicas is None else num_replicas
    rank = own_rank if rank is None else rank
    if not 0 <= rank < num_replicas:
        raise ValueError(f"DistributedChunkedSampler: rank must be from 0 to {num_replicas - 1}, got {rank}")
    count = num_samples or len(dataset)
    part = -(-count // num_replicas)
    own = (min(rank * part, count), min((rank + 1) * part, count))
    return ChunkedSampler(
        dataset, num_samples=own, chunksize=chunksize, seed=seed, shuffle=shuffle, shufflefirst=shufflefirst
    )
