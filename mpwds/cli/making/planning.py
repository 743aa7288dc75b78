"""Which samples go where: order, splits and shards, decided before anything is written."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from mpwds.storage.writing.tar_members import archive_bytes

_SHARD_BYTES = 100_000_000
_LEAST_SHARDS = 16
_LEAST_SAMPLES = 10  # in each of so many
_MOST_SAMPLES = 10_000


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


def into_even_shards(numbers: Sequence[int], size_of: Callable[[int], int]) -> Iterator[list[int]]:
    """Divides samples among shards of about the same size: about 100 MB, or that of 10,000 mean samples.

    There are at least 16 shards, so that each worker has some, as long as they have ten samples each.

    Args:
        numbers: The samples, in order.
        size_of: Bytes of a sample in a tar archive.

    Example:
        >>> [len(shard) for shard in into_even_shards(range(40), lambda number: 1000)]
        [10, 10, 10, 10]
    """
    sizes = [size_of(number) for number in numbers]
    total, samples = sum(sizes), len(sizes)
    enough = min(_LEAST_SHARDS, samples // _LEAST_SAMPLES)
    count = max(1, enough, -(-total // _SHARD_BYTES), -(-samples // _MOST_SAMPLES))
    shard: list[int] = []
    place = before = 0
    for number, size in zip(numbers, sizes, strict=True):
        last, place = place, (2 * before + size) * count // max(2 * total, 1)
        if shard and place != last:
            yield shard
            shard = []
        shard.append(number)
        before += size
    if shard:
        yield shard


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
