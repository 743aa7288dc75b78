"""Samples in the order of evenly spread ranks, dealt to temporary files where memory does not suffice."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from mpwds.cli.resharding.raw_samples import OBJECT_BYTES, RawSample
from mpwds.cli.resharding.spool import Spool

_BUCKETS = 256  # files open at a time

Ranked = tuple[float, RawSample]


def dealt(
    ranked: Iterable[Ranked], memory: int, directory: str, low: float = 0.0, high: float = 1.0
) -> Iterator[RawSample]:
    """Yields samples in the order of their ranks, which are spread evenly from ``low`` to ``high``.

    Up to ``memory`` bytes of samples are held. If there are more, all of them are dealt to temporary files,
    each of which has its part of the ranks and is put in order by itself.
    """
    held: list[Ranked] = []
    size = 0
    width = (high - low) / _BUCKETS
    with contextlib.ExitStack() as spools:
        buckets: dict[int, Spool] = {}

        def deal(rank: float, sample: RawSample) -> None:
            number = int((rank - low) / width)
            if number not in buckets:
                buckets[number] = spools.enter_context(Spool(directory))
            buckets[number].add(rank, sample)

        for rank, sample in ranked:
            if buckets:
                deal(rank, sample)
                continue
            held.append((rank, sample))
            size += sample.size + OBJECT_BYTES
            if size > memory and len(held) > 1:
                for each in held:
                    deal(*each)
                held.clear()
        held.sort(key=lambda each: each[0])
        yield from (sample for _, sample in held)
        for number, bucket in sorted(buckets.items()):
            begin = low + number * width
            yield from dealt(bucket, memory, directory, begin, begin + width)
            bucket.close()
