"""Measures reading and writing of MDS datasets (version 2), beside mosaicml-streaming.

    python tools/bench/mds.py                # about two minutes
    python tools/bench/mds.py --quick        # a fifth of the samples

Both packages run in turn in one process, on the same shards, which are in the page cache. A figure is the
best of the rounds, in samples a second. Samples of 300 bytes have a number and a text; those of 100 kB a
number and bytes.

``in order``: a ``for`` loop over the dataset; of mosaicml-streaming's two classes, ``StreamingDataset`` and
``LocalDataset``, the faster one counts. ``at random``: ``dataset[i]``, of its ``LocalDataset``.
``written``: samples to files.

Datasets are in memory (``/dev/shm``) if 2 GB are free there; ``--directory`` names another place. On a disk
mpwds waits until the shards are on it (``fsync``), which mosaicml-streaming does not.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import mpwds

sys.path.append(str(Path(__file__).parents[2] / "tests" / "storage" / "mds"))
from peer import import_streaming

Sample = dict[str, Any]
Run = Callable[[], object]

# Name, columns, maker of a sample, samples to read, samples to write, goal for reading.
KINDS: list[tuple[str, dict[str, str], Callable[[int], Sample], int, int, float]] = [
    (
        "300 bytes",
        {"number": "int", "text": "str"},
        lambda n: {"number": n, "text": f"the text of sample {n:9} " * 10},
        20_000,
        50_000,
        3.0,
    ),
    (
        "100 kB",
        {"number": "int", "image": "bytes"},
        lambda n: {"number": n, "image": random.Random(n % 50).randbytes(100_000)},
        2_000,
        2_000,
        1.5,
    ),
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of MDS datasets, beside mosaicml-streaming's")
    parser.add_argument("--quick", action="store_true", help="a fifth of the samples, three rounds")
    parser.add_argument("--rounds", type=int, help="rounds of each, 5 by default")
    parser.add_argument("--directory", default=memory(), help="folder for the datasets")
    arguments = parser.parse_args()
    rounds = arguments.rounds or (3 if arguments.quick else 5)
    streaming = import_streaming(unused=("torchvision", "transformers"))
    print(f"samples/s, best of {rounds} rounds; load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
    print(f"{'':<26}{'streaming':>12}{'mpwds':>12}{'ratio':>8}{'goal':>8}")
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        for name, columns, make, to_read, to_write, goal in KINDS:
            scale = 5 if arguments.quick else 1
            measure(
                streaming,
                Path(folder),
                name,
                columns,
                make,
                to_read // scale,
                to_write // scale,
                goal,
                rounds,
            )


def memory() -> str | None:
    """A folder in memory, if it has room."""
    folder = "/dev/shm"
    return folder if os.path.isdir(folder) and shutil.disk_usage(folder).free > 2e9 else None


def measure(
    streaming: Any,
    folder: Path,
    name: str,
    columns: dict[str, str],
    make: Callable[[int], Sample],
    to_read: int,
    to_write: int,
    goal: float,
    rounds: int,
) -> None:
    place = str(folder / name)
    samples = [make(n) for n in range(to_read)]
    write(streaming.MDSWriter, columns, samples, place)
    theirs_local, theirs = (
        streaming.LocalDataset(place),
        streaming.StreamingDataset(local=place, batch_size=1),
    )
    ours = mpwds.MDSDataset(place)
    assert ours[to_read - 1] == theirs_local[to_read - 1] == samples[-1]
    numbers = random.Random(0).choices(range(to_read), k=to_read)

    in_order: dict[str, Run] = {
        "theirs": lambda: exhaust(theirs_local[n] for n in range(to_read)),
        "theirs, streaming": lambda: exhaust(theirs),
        "ours": lambda: exhaust(ours),
    }
    show(f"{name} in order", to_read, in_order, rounds, goal)
    at_random: dict[str, Run] = {
        "theirs": lambda: exhaust(theirs_local[n] for n in numbers),
        "ours": lambda: exhaust(ours[n] for n in numbers),
    }
    show(f"{name} at random", to_read, at_random, rounds, goal)
    several = [samples[n % to_read] for n in range(to_write)]
    writing: dict[str, Run] = {
        "theirs": lambda: write(streaming.MDSWriter, columns, several, str(folder / "theirs")),
        "ours": lambda: write(mpwds.MDSWriter, columns, several, str(folder / "ours")),
    }
    show(f"{name} written", to_write, writing, rounds, 1.0)


def exhaust(samples: Iterable[Any]) -> None:
    for _ in samples:
        pass


def write(writer: Any, columns: dict[str, str], samples: list[Sample], place: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(place)
    with writer(columns=columns, out=place) as sink:
        for sample in samples:
            sink.write(sample)


def show(name: str, count: int, runs: dict[str, Run], rounds: int, goal: float) -> None:
    """Runs each in turn, and prints a row."""
    seconds: dict[str, list[float]] = {each: [] for each in runs}
    for number in range(rounds):
        for each in list(runs)[:: 1 if number % 2 else -1]:
            began = time.perf_counter()
            runs[each]()
            seconds[each].append(time.perf_counter() - began)
    theirs = count / min(min(times) for each, times in seconds.items() if each != "ours")
    ours = count / min(seconds["ours"])
    print(f"{name:<26}{theirs:>12,.0f}{ours:>12,.0f}{ours / theirs:>8.2f}{goal:>8.1f}", flush=True)


if __name__ == "__main__":
    main()
