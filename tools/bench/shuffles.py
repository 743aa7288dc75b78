"""Measures how well each way to shuffle mixes samples, and how fast it reads them.

    python tools/bench/shuffles.py                        # prints the table, a minute
    python tools/bench/shuffles.py --json figures.json    # as tools/bench/report.py does
    python tools/bench/shuffles.py --quick

The dataset has 100,000 samples in 100 tar shards, stored class by class: each shard holds one of 100 classes.
So what a batch of 256 samples has in common shows at once. For each order:

- ``classes``: the different classes in a batch of 256, on average (a true shuffle has 92.4);
- ``again``: of the samples that share a batch, how many share one in the next epoch, too (0.26 %);
- ``held``: the samples that a process keeps in memory;
- samples per second of one process, read but not decoded, from files in the system's cache: of 300 bytes,
  and of 100 kB (there the shards are links to one file, or they would fill the disk); the best of three.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import mpwds

SHARDS, PER_SHARD, BATCH = 100, 1000, 256
SAMPLES = SHARDS * PER_SHARD
POINTS = 700
"""Samples of each order in its picture."""


@dataclass(frozen=True)
class Way:
    """A way to shuffle: its name, the dataset it makes of shards, and how many samples it holds."""

    name: str
    dataset: Callable[[str], Iterable[Any]]
    held: int = 0


WAYS = [
    Way("as stored", lambda urls: mpwds.WebDataset(urls)),
    Way("buffer of 10,000", lambda urls: mpwds.WebDataset(urls).shuffle(10_000), 10_000),
    Way("shards", lambda urls: mpwds.WebDataset(urls, shardshuffle=True)),
    Way(
        "shards, buffer of 1,000",
        lambda urls: mpwds.WebDataset(urls, shardshuffle=True).shuffle(1000),
        1000,
    ),
    Way(
        "shards, buffer of 10,000",
        lambda urls: mpwds.WebDataset(urls, shardshuffle=True).shuffle(10_000),
        10_000,
    ),
    Way('"chunked", 2,000', lambda urls: mpwds.IndexedDataset(urls, "chunked")),
    Way('"chunked", 20,000', lambda urls: mpwds.IndexedDataset(urls, "chunked", chunksize=20_000)),
    Way('"global"', lambda urls: mpwds.IndexedDataset(urls, "global")),
]


@dataclass(frozen=True)
class Figures:
    """What was measured of a way; ``order`` is that of an epoch."""

    way: Way
    order: np.ndarray[Any, Any]
    classes: float
    again: float
    small_per_s: float
    large_per_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description="Quality and cost of each way to shuffle")
    parser.add_argument("--json", type=Path, help="file to write the orders to")
    parser.add_argument("--quick", action="store_true", help="one round, fewer large samples")
    arguments = parser.parse_args()
    rounds, large_samples = (1, 2000) if arguments.quick else (3, 20_000)
    with tempfile.TemporaryDirectory() as folder:
        small, large = _shards(f"{folder}/small", 300, False), _shards(f"{folder}/large", 100_000, True)
        for urls in (small, large):
            len(mpwds.IndexedDataset(urls))  # finds where the samples are, once
        speeds: dict[tuple[str, str], list[float]] = {}
        for _ in range(rounds):
            for urls, samples in ((small, SAMPLES), (large, large_samples)):
                for way in WAYS:
                    speeds.setdefault((way.name, urls), []).append(_speed(way.dataset(urls), samples))
        found = []
        for way in WAYS:
            rates = [max(speeds[way.name, urls]) for urls in (small, large)]
            found.append(_measured(way, small, *rates))
    print(_table(found))
    if arguments.json:
        arguments.json.write_text(json.dumps({"orders": [_pictured(each) for each in found]}) + "\n")


def _shards(folder: str, size: int, linked: bool) -> str:
    """Writes the shards. A sample's key is its number, and the shard its class."""
    os.makedirs(folder)
    data = os.urandom(size)
    for shard in range(SHARDS):
        path = f"{folder}/x-{shard:02}.tar"
        if linked and shard:
            os.link(f"{folder}/x-00.tar", path)
            continue
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
            for number in range(PER_SHARD):
                member = tarfile.TarInfo(f"{shard * PER_SHARD + number:06}.bin")
                member.size = size
                archive.addfile(member, io.BytesIO(data))
    return f"{folder}/x-{{00..{SHARDS - 1}}}.tar"


def _speed(dataset: Iterable[Any], samples: int) -> float:
    start = time.perf_counter()
    for _ in islice(dataset, samples):
        pass
    return samples / (time.perf_counter() - start)


def _measured(way: Way, urls: str, small_per_s: float, large_per_s: float) -> Figures:
    dataset = way.dataset(urls)
    first, second = (np.array([int(sample["__key__"]) for sample in dataset]) for _ in range(2))
    batches = first[: SAMPLES // BATCH * BATCH].reshape(-1, BATCH) // PER_SHARD
    classes = float(np.mean([len(np.unique(batch)) for batch in batches]))
    return Figures(way, first, classes, _again(first, second), small_per_s, large_per_s)


def _again(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> float:
    """Of all pairs of samples that share a batch of one epoch, the part that share one in the other."""
    batch_of = np.empty(SAMPLES, int)
    batch_of[second] = np.arange(SAMPLES) // BATCH
    pairs = together = 0
    for start in range(0, SAMPLES, BATCH):
        mates = first[start : start + BATCH]
        _, counts = np.unique(batch_of[mates], return_counts=True)
        pairs += len(mates) * (len(mates) - 1)
        together += int((counts * (counts - 1)).sum())
    return together / pairs


def _table(found: list[Figures]) -> str:
    lines = [
        "| order | classes | again | held | 300 B, samples/s | 100 kB, samples/s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for each in found:
        row = (
            each.way.name,
            f"{each.classes:.1f}",
            f"{100 * each.again:.2f} %",
            f"{each.way.held:,}",
            f"{each.small_per_s:,.0f}",
            f"{each.large_per_s:,.0f}",
        )
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def _pictured(each: Figures) -> dict[str, Any]:
    """What a picture shows of an order: no speeds, so it is the same in every run.

    ``places`` are the places in storage, in thousandths, of samples that are evenly spread over the epoch.
    They are one string, and so one line of the report.
    """
    places = each.order[np.arange(POINTS) * SAMPLES // POINTS] * 1000 // SAMPLES
    return {"name": each.way.name, "classes": round(each.classes, 1), "places": " ".join(map(str, places))}


if __name__ == "__main__":
    main()
