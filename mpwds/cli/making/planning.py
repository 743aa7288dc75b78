"""Which samples go where: order, splits and shards, decided before anything is written."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from mpwds.storage.writing.tar_writer import archive_bytes


def split_in_two(count: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Divides the numbers below ``count`` at random, the same way for the same seed; both in rising order.

    Args:
        count: Number of samples.
        share: Share of the first part, 0 to 1; rounded to whole samples, and each part gets one at least.
        seed: Determines which.

    Raises:
        ValueError: The share is not between 0 and 1, or there are fewer than two samples.

    Example:
        >>> split_in_two(5, 0.8, seed=0)
        ([0, 1, 3, 4], [2])
    """
    if not 0 < share < 1:
        raise ValueError(f"the share of training samples must be between 0 and 1, got {share:g}")
    if count < 2:
        raise ValueError(f"{count} samples cannot be split in two")
    first = min(max(round(share * count), 1), count - 1)
    chosen = set(random.Random(f"{seed}/split").sample(range(count), count - first))
    return [n for n in range(count) if n not in chosen], sorted(chosen)


def shuffled(numbers: Sequence[int], seed: int) -> list[int]:
    """The numbers in an order that depends on the seed alone."""
    order = list(numbers)
    random.Random(f"{seed}/order").shuffle(order)
    return order


def into_shards(
    numbers: Sequence[int], size_of: Callable[[int], int], maxcount: int, maxsize: float
) -> Iterator[list[int]]:
    """Divides samples among shards.

    Args:
        numbers: The samples, in order.
        size_of: Bytes of a sample in a tar archive.
        maxcount: Samples in a shard, at most.
        maxsize: Bytes of an archive, at most, unless a single sample has more.

    Example:
        >>> list(into_shards(range(5), lambda number: 10_000, maxcount=3, maxsize=30_720))
        [[0, 1], [2, 3], [4]]
    """
    shard: list[int] = []
    size = 0
    for number in numbers:
        of_sample = size_of(number)
        if shard and (len(shard) >= maxcount or archive_bytes(size + of_sample) > maxsize):
            yield shard
            shard, size = [], 0
        shard.append(number)
        size += of_sample
    if shard:
        yield shard
