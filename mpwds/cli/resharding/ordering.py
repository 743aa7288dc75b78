"""Samples in the order of their ranks, by way of temporary files where memory does not suffice."""

from __future__ import annotations

import contextlib
import heapq
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from mpwds.cli.resharding.raw_samples import OBJECT_BYTES, RawSample
from mpwds.cli.resharding.spool import Spool
from mpwds.errors import ShardError

_MOST_FILES = 256  # open at a time
_NUMBER = re.compile(r"[+-]?\d+")
_FRACTION = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")

Rank = list[Any]
"""``[0, number]`` or ``[1, text]``: numbers come first."""

Ranked = tuple[Rank, RawSample]


def dealt(
    ranked: Iterable[tuple[float, RawSample]],
    memory: int,
    directory: str,
    low: float = 0.0,
    high: float = 1.0,
) -> Iterator[RawSample]:
    """Yields samples in the order of their ranks, which are spread evenly from ``low`` to ``high``.

    Up to ``memory`` bytes of samples are held. If there are more, all of them are dealt to temporary files,
    each of which has its part of the ranks and is put in order by itself.
    """
    held: list[tuple[float, RawSample]] = []
    size = 0
    width = (high - low) / _MOST_FILES
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


def merged(
    ranked: Iterable[Ranked], memory: int, directory: str, reverse: bool = False
) -> Iterator[RawSample]:
    """Yields samples in the order of their ranks; equal ones stay in their order.

    Each time that ``memory`` bytes of samples have been read, they go to a temporary file in their order. In
    the end these files are merged.
    """
    held: list[Ranked] = []
    size = 0
    with contextlib.ExitStack() as spools:
        runs: list[Spool] = []

        def in_order(*further: list[Ranked]) -> Iterator[Ranked]:
            return heapq.merge(*runs, *further, key=_rank, reverse=reverse)

        def spooled(samples: Iterable[Ranked]) -> Spool:
            spool = spools.enter_context(Spool(directory))
            for rank, sample in samples:
                spool.add(rank, sample)
            return spool

        for rank, sample in ranked:
            held.append((rank, sample))
            size += sample.size + OBJECT_BYTES
            if size > memory:
                held.sort(key=_rank, reverse=reverse)
                runs.append(spooled(held))
                held, size = [], 0
            if len(runs) == _MOST_FILES:
                smaller, runs = runs, [spooled(in_order())]
                for run in smaller:
                    run.close()
        held.sort(key=_rank, reverse=reverse)
        yield from (sample for _, sample in in_order(held))


def fields_of(by: str) -> list[str]:
    """The fields in which the value to sort by may be: ``json.a.b`` and its beginnings, the longest first.

    Example:
        >>> fields_of("json.a.b")
        ['json.a.b', 'json.a', 'json']
    """
    names = by.split(".")
    return [".".join(names[:count]) for count in range(len(names), 0, -1)]


def rank_of(sample: RawSample, by: str, text: bool = False) -> Rank:
    """The value by which a sample is sorted. Raises ``ShardError`` if it has none."""
    if by == "__key__":
        return [1, sample.key]
    field = next((name for name in fields_of(by) if name in sample.fields), None)
    data = None if field is None else sample.fields.pop(field)
    if field is None or data is None:
        raise ShardError(f"{sample} has no field {by!r} to sort by")
    try:
        value: Any = data.decode().strip()
        for name in by[len(field) + 1 :].split(".") if field != by else ():
            value = (json.loads(value) if isinstance(value, str) else value)[name]
    except (ValueError, LookupError, TypeError) as error:
        raise ShardError(f"{sample} cannot be sorted by {by}: {error!r}") from error
    if not isinstance(value, (str, int, float)) or value != value:
        raise ShardError(f"{sample}: {by} is {json.dumps(value)[:60]}, neither a number nor a text")
    if isinstance(value, str) and not text and _FRACTION.fullmatch(value):
        value = int(value) if _NUMBER.fullmatch(value) else float(value)
    return [1, str(value)] if text or isinstance(value, str) else [0, value]


def _rank(ranked: Ranked) -> Rank:
    return ranked[0]
