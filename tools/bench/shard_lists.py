"""Measures what a long list of shards costs, from 10 shards to a million: none of them is read.

    python tools/bench/shard_lists.py             # prints the table, a few seconds
    python tools/bench/shard_lists.py --streams 12 --list

Shards are shuffled (``shardshuffle=True``) and given as one pattern, or with ``--list`` as a list of names.
Milliseconds, the best of three:

- ``make``: ``WebDataset(shards)``;
- ``send``: pickled for a worker and unpickled there; with the bytes sent;
- ``start``: the first shard of an epoch, in one worker of 8;
- ``streams``: the first shards of an epoch of 96 streams in one process (``streams=96``);
- ``state``: ``state_dict()`` of a stream of the dataset, and of a loader;
- ``missing``: the error for a shard that does not exist;
- ``memory``: the most megabytes that Python holds for a dataset and the streams, in a run of its own. A list
  itself is not counted.
"""

from __future__ import annotations

import argparse
import os
import pickle
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

import mpwds
from mpwds.pipeline.context import Context

WORKERS, ROUNDS = 8, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=96)
    parser.add_argument("--list", action="store_true", help="names in a list, in place of a pattern")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        print_table(args.streams, args.list)


def print_table(streams: int, as_list: bool) -> None:
    print("| shards | make | send | start | streams | state of stream / loader | missing | memory |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for digits in range(1, 7):
        pattern = f"x-{{{'0' * digits}..{'9' * digits}}}.tar"
        names = mpwds.expand_urls(pattern) if as_list else pattern
        print(f"| {10**digits:,} | {' | '.join(measured(names, streams))} |", flush=True)


def measured(names: str | list[str], streams: int) -> Sequence[str]:
    def make() -> Any:
        return mpwds.WebDataset(names, shardshuffle=True)

    dataset = make()
    sent = cloudpickle.dumps(dataset)
    stream = dataset.stream()
    with mpwds.MultiLoader(dataset, workers=0) as loader:
        of_loader = best_ms(loader.state_dict)
    columns = [
        best_ms(make),
        f"{best_ms(lambda: pickle.loads(cloudpickle.dumps(dataset)))} ({len(sent):,} bytes)",
        best_ms(lambda: first_shards(dataset, [0], WORKERS)),
        best_ms(lambda: first_shards(dataset, range(streams), streams)),
        f"{best_ms(stream.state_dict)} / {of_loader}",
        best_ms(lambda: fail(dataset)),
    ]
    tracemalloc.start()
    first_shards(make(), range(streams), streams)
    columns.append(f"{tracemalloc.get_traced_memory()[1] / 1e6:.2f}")
    tracemalloc.stop()
    return columns


def first_shards(dataset: Any, numbers: Sequence[int], of: int) -> list[Any]:
    """The first shards of some streams, which all are kept."""
    shards = dataset.stage(0)
    streams = [shards.stream(Context(worker=number, workers=of)) for number in numbers]
    return [(next(stream, None), stream) for stream in streams]


def fail(dataset: Any) -> None:
    try:
        next(dataset.stream())
    except FileNotFoundError:
        return
    raise AssertionError("a shard was found")


def best_ms(run: Callable[[], object]) -> str:
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return f"{min(times) * 1000:.2f}"


if __name__ == "__main__":
    main()
