"""Plans shards (order, splits, sizes), then writes each in one worker: their number changes nothing."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mpwds.cli.console import progress
from mpwds.cli.convert.finding import Samples
from mpwds.cli.jobs import noted, run_jobs
from mpwds.cli.options import Engine
from mpwds.errors import WrongArgument
from mpwds.storage.streams.urls import is_local, local_path, without_credentials
from mpwds.storage.writing.destinations import is_series, numbered
from mpwds.storage.writing.tar_members import archive_bytes
from mpwds.storage.writing.tar_writer import TarWriter

_REPORT_BYTES = 16 << 20
_SHARD_BYTES = 100_000_000
_LEAST_SHARDS = 16
_LEAST_SAMPLES = 10  # in each of so many
_MOST_SAMPLES = 10_000


def choose(
    found: Mapping[str, Samples], wanted: str, train: float | None, seed: int
) -> dict[str, tuple[Samples, Sequence[int]]]:
    """The samples of each split, and the numbers of those to write, in order."""
    if wanted:
        if wanted not in found:
            raise WrongArgument(
                f"--split {wanted}: there are {', '.join(filter(None, found)) or 'no splits'}"
            )
        found = {"": found[wanted]}
    if train is None:
        return {name: (samples, range(len(samples))) for name, samples in found.items()}
    if len(found) > 1:
        raise WrongArgument(f"--train: there are splits already, {', '.join(found)}: choose one by --split")
    (samples,) = found.values()
    first, second = split_in_two(len(samples), train, seed)
    return {"train": (samples, first), "val": (samples, second)}


def plan_shards(
    pattern: str, samples: Samples, numbers: Sequence[int], maxcount: int | None, maxsize: int | None
) -> list[Planned]:
    """The shards of a split; one, if the pattern is the name of one."""
    if not is_series(pattern):
        return [Planned(pattern, samples.part(numbers), len(numbers))]
    if maxcount or maxsize:
        parts = into_shards(numbers, samples.size_of, maxcount or 10_000, maxsize or 10**9)
    else:
        parts = into_even_shards(numbers, samples.size_of)
    return [
        Planned(numbered(pattern, number), samples.part(part), len(part)) for number, part in enumerate(parts)
    ]


def split_in_two(count: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Divides the numbers below ``count`` at random, the same way for the same seed; both in rising order.

    The first part gets ``share`` of them, rounded to whole samples, and each part gets one at least.

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
    """Divides samples among shards. A single sample may have more bytes than ``maxsize``.

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


class Planned(NamedTuple):
    """A shard to write. The worker that iterates its samples reads them."""

    url: str
    samples: Iterable[dict[str, Any]]
    total: int


@dataclass(frozen=True)
class Written:
    """A shard that is complete."""

    url: str
    samples: int
    nbytes: int | None  # of their data; ``None`` if an earlier run has written them
    filesize: int | None  # ``None`` if it is not local


def write_shards(
    shards: Sequence[Planned], jobs: int, done: Collection[str] = (), engine: Engine | None = None
) -> list[Written]:
    """Writes shards in ``jobs`` processes, or in this one if there is only one or one shard.

    A shard appears under its name when it is complete; those in ``done`` are already. Errors, and Ctrl-C,
    leave the complete ones. Raises ``ValueError`` if two samples of a shard have one key, or one cannot be
    written.
    """
    written = {
        number: Written(shard.url, shard.total, None, _filesize(shard.url))
        for number, shard in enumerate(shards)
        if shard.url in done
    }
    left = [(number, shard) for number, shard in enumerate(shards) if number not in written]
    before = sum(shard.samples for shard in written.values())
    total = sum(shard.total for shard in shards)
    workers = min(jobs, len(left))
    workers = workers if workers > 1 or engine else 0
    with progress(total, before) as advance:
        # The library of cloud storage does not survive a fork.
        start = "fork" if all(is_local(shard.url) for shard in shards) else "forkserver"
        options: dict[str, Any] = {"in_order": False, "start_method": start}
        for number, samples, shard in run_jobs(left, _write, workers, engine, **options):
            advance(samples, "writing")
            if shard is not None:
                written[number] = Written(*shard)
    return [written[number] for number in range(len(shards))]


def _write(task: tuple[int, Planned]) -> Iterator[tuple[int, int, tuple[Any, ...] | None]]:
    """Writes a shard; tells in between how many samples it wrote since it last told."""
    number, (url, samples, _) = task
    keys: set[str] = set()
    told, untold, nbytes = 0, 0, 0
    with (
        TarWriter(url, mtime=0, keep_meta=True, replace=False) as sink,
        noted(f"while writing {without_credentials(url)}"),
    ):
        for sample in samples:
            key = sample["__key__"]
            if key in keys:
                raise ValueError(f"the key {key!r} occurs twice")
            keys.add(key)
            nbytes += sink.write(sample)
            untold += 1
            if nbytes - told >= _REPORT_BYTES:
                yield number, untold, None
                told, untold = nbytes, 0
    yield number, untold, (url, len(keys), nbytes, _filesize(url))


def _filesize(url: str) -> int | None:
    return os.path.getsize(local_path(url)) if url != "-" and is_local(url) else None
