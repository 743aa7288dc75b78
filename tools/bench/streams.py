"""Measures what ``streams=`` costs: batches a second with four streams for each worker, and without.

    python tools/bench/streams.py                    # three minutes
    python tools/bench/streams.py --rounds 3 --only small

Two workers make batches of 512 bytes, of samples from shards (``shuffle(1000)`` in all, decoded, 32 in a
batch), and of 9.6 MB. Loaders with and without streams run in turn. A figure is the median of the rounds; a
ratio is that of the rounds' ratios, with the least and the largest.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import mpwds

WORKERS, STREAMS = 2, 8
WARM_UP_S = 0.5
SHARDS, PER_SHARD = 64, 200

SMALL = np.zeros(512, np.uint8)
LARGE = np.zeros((64, 3, 224, 224), np.uint8)


def small(number: int) -> np.ndarray:
    SMALL[number % 512] = number % 100
    return SMALL


def large(number: int) -> np.ndarray:
    LARGE[0, 0, 0, number % 224] = number % 100
    return LARGE


def shards(folder: Path) -> str:
    for shard in range(SHARDS):
        with mpwds.TarWriter(folder / f"x-{shard:02}.tar") as sink:
            for number in range(PER_SHARD):
                image = np.full((32, 32, 3), number % 256, np.uint8)
                sink.write({"__key__": f"{number:04}", "npy": image, "cls": number})
    return f"{folder}/x-{{00..{SHARDS - 1}}}.tar"


def datasets(folder: Path) -> dict[str, Callable[[int], mpwds.DataPipeline]]:
    """What makes each dataset, of the number of streams that share a buffer."""
    urls = shards(folder)

    def samples(streams: int) -> mpwds.DataPipeline:
        stored = mpwds.WebDataset(urls, shardshuffle=True).shuffle(1000 // streams)
        return stored.decode().to_tuple("npy", "cls").batched(32).repeat(1000)

    return {
        "small": lambda _: mpwds.DataPipeline(range(10**8)).map(small),
        "samples": samples,
        "large": lambda _: mpwds.DataPipeline(range(10**6)).map(large),
    }


def rate(dataset: mpwds.DataPipeline, streams: int | None, seconds: float) -> float:
    """Batches a second."""
    options = {} if streams is None else {"streams": streams}
    with mpwds.MultiLoader(dataset, WORKERS, output="numpy", **options) as loader:
        batches = iter(loader)
        next(batches)
        _run(batches, WARM_UP_S)
        return _run(batches, seconds)


def _run(batches: object, seconds: float) -> float:
    count, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        for batch in itertools.islice(batches, 8):
            batch[0]
        count += 8
    return count / took


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", nargs="+")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, make in datasets(Path(folder)).items():
            if arguments.only and name not in arguments.only:
                continue
            without, dealt = [], []
            for _ in range(arguments.rounds):
                without.append(rate(make(WORKERS), None, arguments.seconds))
                dealt.append(rate(make(STREAMS), STREAMS, arguments.seconds))
            ratios = sorted(with_streams / alone for with_streams, alone in zip(dealt, without, strict=True))
            rates = [f"{statistics.median(rates):,.0f}" for rates in (without, dealt)]
            spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            print(f"{name:8} {rates[0]}/s, with {STREAMS} streams {rates[1]}/s: {spread}", flush=True)


if __name__ == "__main__":
    main()
