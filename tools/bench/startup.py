"""Measures how soon the first batch is there, and what a worker costs in memory.

    python tools/bench/startup.py              # all, about nine minutes
    python tools/bench/startup.py --rounds 1 --workers 1

torch's DataLoader by each of its start methods, mpwds.DataLoader, and MultiLoader by each of its, run in
turn on the same dataset; a time is the median over the rounds, from the loader's construction to its first
batch. ``later`` is the same for the next loader in the same program, which matters where something stays:
the fork server. Memory is that of one worker after twenty batches: USS,
what would be free without it, and PSS, which counts pages that it shares in part. ``numpy`` is a dataset of
arrays that needs nothing but NumPy; ``torch`` is one that imports torch; ``shards`` are tar shards, which
webdataset reads under DataLoader, and ours under ours. Ratios are to the first loader of a table.
"""

from __future__ import annotations

import argparse
import functools
import gc
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import torch
import torch.utils.data
import webdataset

import mpwds

BATCHES = 20
METHODS = ("fork", "forkserver", "spawn")


class Arrays:
    """Yields arrays of 64 numbers for ever."""

    def __iter__(self) -> Iterator[np.ndarray]:
        while True:
            yield np.ones(64, np.int64)


class Tensors(torch.utils.data.IterableDataset):
    """Yields tensors of 64 numbers for ever."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.ones(64, dtype=torch.int64)


class ArraysForTorch(torch.utils.data.IterableDataset):
    """The same as Arrays, of the class that torch's DataLoader wants."""

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(Arrays())


Make = Callable[[int], Any]


def dataloader(cls: Any, dataset: Any, method: str | None, workers: int) -> Any:
    return cls(dataset, batch_size=None, num_workers=workers, multiprocessing_context=method)


def multi_loader(dataset: Any, method: str, workers: int) -> Any:
    return mpwds.MultiLoader(dataset, workers, start_method=method)


def loaders(kind: str, shards: list[str]) -> dict[str, Make]:
    """What is compared, by name."""
    theirs = torch.utils.data.DataLoader
    makers: dict[str, Make] = {}
    if kind == "shards":
        peer, mine = (
            package.WebDataset(shards, shardshuffle=False).decode().to_tuple("npy").batched(64).repeat()
            for package in (webdataset, mpwds)
        )
        for method in METHODS:
            makers[f"webdataset, DataLoader, {method}"] = functools.partial(dataloader, theirs, peer, method)
        for method in METHODS:
            makers[f"MultiLoader, {method}"] = functools.partial(multi_loader, mine, method)
        return makers
    for_torch = ArraysForTorch() if kind == "numpy" else Tensors()
    # Ours needs no class of torch's: by it, workers would import torch after all.
    ours = _arrays if kind == "numpy" else Tensors()
    for method in METHODS:
        makers[f"DataLoader, {method}"] = functools.partial(dataloader, theirs, for_torch, method)
    makers["mpwds.DataLoader"] = functools.partial(dataloader, mpwds.DataLoader, for_torch, None)
    for method in METHODS:
        makers[f"MultiLoader, {method}"] = functools.partial(multi_loader, ours, method)
    return makers


def _arrays() -> Iterator[np.ndarray]:
    while True:
        yield np.ones(64, np.int64)


def first_batch_s(make: Make, workers: int) -> tuple[float, Any, Any]:
    """Seconds to the first batch, with the loader and its iterator."""
    start = time.perf_counter()
    loader = make(workers)
    iterator = iter(loader)
    next(iterator)
    return time.perf_counter() - start, loader, iterator


def close(loader: Any) -> None:
    if hasattr(loader, "close"):
        loader.close()
    gc.collect()


def memory_mb(loader: Any, iterator: Any) -> tuple[float, float]:
    """USS and PSS of a worker, on average."""
    for _ in range(BATCHES):
        next(iterator)
    if isinstance(loader, mpwds.MultiLoader):
        pids = loader.worker_pids
    elif isinstance(loader, mpwds.DataLoader):
        pids = iterator.worker_pids
    else:
        pids = [worker.pid for worker in iterator._workers]
    infos = [psutil.Process(pid).memory_full_info() for pid in pids]
    return statistics.mean(info.uss for info in infos) / 1e6, statistics.mean(
        info.pss for info in infos
    ) / 1e6


def write_shards(folder: str) -> list[str]:
    """Writes 64 arrays of 64 numbers into each of eight shards."""
    with mpwds.ShardWriter(f"{folder}/%d.tar", maxcount=64, verbose=False) as shards:
        for number in range(8 * 64):
            shards.write({"__key__": f"{number:06}", "npy": np.ones(64, np.int64)})
    return [f"{folder}/{number}.tar" for number in range(8)]


def measure(kind: str, workers: int, rounds: int, shards: list[str]) -> None:
    makers = loaders(kind, shards)
    first: dict[str, list[float]] = {name: [] for name in makers}
    later: dict[str, list[float]] = {name: [] for name in makers}
    memory = {}
    for _ in range(rounds):
        for name, make in makers.items():
            # Two at once, so that what the second one finds is still there.
            seconds, loader, iterator = first_batch_s(make, workers)
            first[name].append(seconds)
            memory[name] = memory_mb(loader, iterator)
            seconds, other, other_iterator = first_batch_s(make, workers)
            later[name].append(seconds)
            del iterator, other_iterator
            close(other)
            close(loader)
    reference = statistics.median(first[next(iter(makers))])
    print(
        f"\n{kind + ' dataset, workers: ' + str(workers):34} {'first':>8} {'later':>8} {'ratio':>7} USS, PSS"
    )
    for name in makers:
        a, b = statistics.median(first[name]), statistics.median(later[name])
        uss, pss = memory[name]
        print(f"{name:34} {a:6.2f} s {b:6.2f} s {a / reference:7.1f} {uss:6.0f} {pss:6.0f} MB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4])
    kinds = ["numpy", "torch", "shards"]
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds)
    options = parser.parse_args()

    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    print(f"{platform.machine()}, {os.cpu_count()} cores, {versions}; medians of {options.rounds} rounds")
    with tempfile.TemporaryDirectory() as folder:
        shards = write_shards(folder)
        for kind in options.only:
            for workers in options.workers:
                measure(kind, workers, options.rounds, shards)


if __name__ == "__main__":
    main()
