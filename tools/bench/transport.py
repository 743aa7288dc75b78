"""Measures what a MultiLoader takes the place of: getting ready batches from workers to the training loop.

    python tools/bench/transport.py            # all, about five minutes
    python tools/bench/transport.py --quick    # under a minute, less exact
    python tools/bench/transport.py --rounds 1 --seconds 0.3 --only small

torch's DataLoader (``batch_size=None``, its default start method) and MultiLoader (its defaults) run in turn
on the same datasets; a figure is the median over the rounds. A dataset yields the same NumPy array again
and again, one element of it changed each time, so nothing but transport is measured. Rates are counted
after the first ten batches. Ratios are ours to DataLoader's in this run, on this machine.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data

import mpwds

WARM_UP_BATCHES = 10


class ReadyBatches(torch.utils.data.IterableDataset):
    """Yields one array for ever, a little changed each time."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.shape = shape
        self.dtype = dtype

    def __iter__(self) -> Iterator[np.ndarray]:
        array = np.ones(self.shape, self.dtype)
        flat = array.reshape(-1)
        number = 0
        while True:
            number += 1
            flat[number % flat.size] = number % 100
            yield array


class Samples(torch.utils.data.IterableDataset):
    """Yields single samples for ever, ``distinct`` arrays in turn, each with a label."""

    def __init__(self, shape: tuple[int, ...], dtype: str, distinct: int) -> None:
        self.shape = shape
        self.dtype = dtype
        self.distinct = distinct

    def __iter__(self) -> Iterator[tuple[np.ndarray, int]]:
        arrays = np.ones((self.distinct, *self.shape), self.dtype)
        number = 0
        while True:
            array = arrays[number % self.distinct]
            array.flat[number % array.size] = number % 100
            yield array, number
            number += 1


def numpy_batches(shape: tuple[int, ...], dtype: str) -> Callable[[], Iterator[np.ndarray]]:
    """The same as ReadyBatches without torch, as a function that makes the iterator."""

    def batches() -> Iterator[np.ndarray]:
        array = np.ones(shape, dtype)
        flat = array.reshape(-1)
        number = 0
        while True:
            number += 1
            flat[number % flat.size] = number % 100
            yield array

    return batches


@dataclass(frozen=True)
class Case:
    """One comparison: what is sent, what the consumer does, and the ratio aimed at."""

    group: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    goal: float
    collated: int = 0
    reads: bool = False

    @property
    def nbytes(self) -> int:
        return max(1, self.collated) * int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    def torch_loader(self, workers: int) -> Any:
        if self.collated:
            dataset = Samples(self.shape, self.dtype, self.collated)
            return torch.utils.data.DataLoader(dataset, batch_size=self.collated, num_workers=workers)
        return torch.utils.data.DataLoader(
            ReadyBatches(self.shape, self.dtype), batch_size=None, num_workers=workers
        )

    def our_loader(self, workers: int) -> Any:
        if self.collated:
            pipeline = mpwds.DataPipeline(Samples(self.shape, self.dtype, self.collated)).batched(
                self.collated
            )
            return mpwds.MultiLoader(pipeline, workers=workers)
        return mpwds.MultiLoader(numpy_batches(self.shape, self.dtype), workers=workers)


CASES = [
    Case("large", "float16 [256,3,224,224]", (256, 3, 224, 224), "float16", goal=7),
    Case("large", "float32 [64,3,224,224]", (64, 3, 224, 224), "float32", goal=8),
    Case("large", "uint8 [64,224,224,3]", (64, 224, 224, 3), "uint8", goal=11),
    Case("small", "int64 [64]", (64,), "int64", goal=30),
    Case(
        "reads", "float32 [64,3,224,224], every byte read", (64, 3, 224, 224), "float32", goal=5, reads=True
    ),
    Case(
        "collate", "64 samples float32 [3,224,224], collated", (3, 224, 224), "float32", goal=8, collated=64
    ),
]


def batches_per_second(loader: Any, case: Case, seconds: float) -> float:
    """Rate at which the loader's batches can be consumed, once it runs."""
    iterator = iter(loader)
    for _ in range(WARM_UP_BATCHES):
        consume(next(iterator), case)
    count = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        consume(next(iterator), case)
        count += 1
    return count / elapsed


def consume(batch: Any, case: Case) -> None:
    tensor = batch[0] if case.collated else batch
    if tensor.nbytes != case.nbytes:
        raise SystemExit(f"expected {case.nbytes} bytes, got {tensor.nbytes}")
    if case.reads:
        np.add.reduce(tensor.numpy().reshape(-1).view(np.int64))


def close(loader: Any, iterator: Any = None) -> None:
    del iterator
    if hasattr(loader, "close"):
        loader.close()
    gc.collect()


def pss_mb(pid: int) -> float:
    """Memory of a process in MB, pages that it shares counted in part (proportional set size)."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(r"^Pss:\s+(\d+) kB", rollup, re.M)
    return int(found.group(1)) / 1024 if found else float("nan")


def copy_rate_gb_s(processes: int) -> float:
    """The machine's memcpy rate into memory that was used before, of so many processes together."""
    context = multiprocessing.get_context("fork")
    start, rates = context.Barrier(processes), context.SimpleQueue()
    copiers = [context.Process(target=_copy, args=(start, rates)) for _ in range(processes)]
    for copier in copiers:
        copier.start()
    total = sum(rates.get() for _ in copiers)
    for copier in copiers:
        copier.join()
    return total


def _copy(start: Any, rates: Any, nbytes: int = 38_535_168, seconds: float = 0.5) -> None:
    source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    copies = 0
    start.wait()
    began = time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        np.copyto(target, source)
        copies += 1
    rates.put(copies * nbytes / elapsed / 1e9)


def measure_rates(cases: list[Case], workers: list[int], rounds: int, seconds: float) -> None:
    print(f"\n{'batch':42} workers  DataLoader        MultiLoader       GB/s   ratio  goal")
    for case in cases:
        for count in workers:
            theirs, ours = [], []
            for _ in range(rounds):
                for make, rates in ((case.torch_loader, theirs), (case.our_loader, ours)):
                    loader = make(count)
                    rates.append(batches_per_second(loader, case, seconds))
                    close(loader)
                    del loader
            a, b = statistics.median(theirs), statistics.median(ours)
            print(
                f"{case.name:42} {count:7} {a:11,.1f}/s  {b:14,.1f}/s  {b * case.nbytes / 1e9:8.2f}  "
                f"{b / a:6.1f}  {case.goal:4g}",
                flush=True,
            )


def measure_stall(seconds: float = 3.0) -> None:
    """Memory of trainer and workers while the consumer does nothing."""
    print(f"\nconsumer stalled for {seconds:g} s, 2 workers (PSS of trainer and workers, MB)")
    for case in (CASES[1], CASES[3]):
        loader = case.our_loader(2)
        iterator = iter(loader)
        for _ in range(4 * WARM_UP_BATCHES):
            next(iterator)
        time.sleep(0.5)
        pids = [os.getpid(), *loader.worker_pids]
        before = sum(map(pss_mb, pids))
        time.sleep(seconds)
        after = sum(map(pss_mb, pids))
        print(f"{case.name:42} {before:8.1f} before, {after:8.1f} after: {after - before:+.1f}")
        close(loader, iterator)
        del loader, iterator


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="runs of each loader in each case")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a run, after warming up")
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    groups = ["large", "small", "reads", "collate", "stall"]
    parser.add_argument("--only", nargs="+", choices=groups, default=groups)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 0.2

    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    print(f"{platform.machine()}, {os.cpu_count()} cores, {versions}")
    print(f"memcpy {copy_rate_gb_s(1):.1f} GB/s in one process, {copy_rate_gb_s(2):.1f} GB/s in two at once")
    print(f"medians of {options.rounds} alternating runs of {options.seconds:g} s")
    cases = [case for case in CASES if case.group in options.only]
    if cases:
        measure_rates(cases, options.workers, options.rounds, options.seconds)
    if "stall" in options.only:
        measure_stall()


if __name__ == "__main__":
    main()
