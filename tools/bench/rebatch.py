"""Measures taking batches apart, shuffling their rows and batching them again in the training process.

    python tools/bench/rebatch.py             # all, about seven minutes
    python tools/bench/rebatch.py --quick     # a minute or two, less exact
    python tools/bench/rebatch.py --rounds 1 --seconds 0.5 --only small

``webdataset.WebLoader(...).unbatched().shuffle(n).batched(m)``, which is torch's DataLoader with stages
behind it, ``mpwds.WebLoader`` and ``mpwds.MultiLoader`` with the same stages, and
``MultiLoader.rebatched(m, shuffle=n)`` run in turn on the same dataset, whose workers yield a ready batch
again and again, one element of it changed each time: so nothing but the way to the new batches is
measured. ``here`` is the training process alone, with a batch that is there already (and stays in the
processor's cache).

Each run has a process of its own: whether malloc has room for a batch or gets fresh memory for each is a
matter of what went before. Rates are counted when five times the pool's rows have gone through: until then,
batches of which a single row is left pile up. A figure is the best of the rounds. Ratios are to webdataset's.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.utils.data
import webdataset

import mpwds
from mpwds.pipeline.rebatch.rebatched import Rebatched

Run = Callable[["Case", int], Iterable[Any]]
"""Makes the new batches of a case, with so many workers."""


class ReadyBatches(torch.utils.data.IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Yields a batch of tensors for ever, a little changed each time."""

    def __init__(self, rows: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.rows = rows
        self.shape = shape
        self.dtype = dtype

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        images = torch.ones((self.rows, *self.shape), dtype=self.dtype)
        labels = torch.arange(self.rows)
        flat = images.view(-1)
        for number in itertools.count():
            flat[number % len(flat)] = number % 100
            yield images, labels


@dataclass(frozen=True)
class Case:
    """Rows, the batches they come in and those they go out in."""

    group: str
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    batch: int = 64
    new_batch: int = 256
    pool: int = 2000

    @property
    def dataset(self) -> ReadyBatches:
        return ReadyBatches(self.batch, self.shape, self.dtype)

    @property
    def row_nbytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize + 8

    def staged(self, loader: Any) -> Any:
        return loader.unbatched().shuffle(self.pool).batched(self.new_batch)

    def their_web_loader(self, workers: int) -> Any:
        return self.staged(webdataset.WebLoader(self.dataset, batch_size=None, num_workers=workers))

    def our_web_loader(self, workers: int) -> Any:
        return self.staged(mpwds.WebLoader(self.dataset, batch_size=None, num_workers=workers))

    def our_loader(self, workers: int) -> Any:
        return self.staged(mpwds.MultiLoader(self.dataset, workers=workers))

    def rebatched(self, workers: int) -> Any:
        return mpwds.MultiLoader(self.dataset, workers=workers).rebatched(self.new_batch, shuffle=self.pool)


CASES = [
    Case("small", "float32 [3,64,64]", (3, 64, 64), torch.float32),
    Case("large", "uint8 [224,224,3]", (224, 224, 3), torch.uint8),
    Case("larger", "float32 [3,224,224]", (3, 224, 224), torch.float32),
    Case("tokens", "int64 [512]", (512,), torch.int64),
    Case("split", "float32 [3,64,64], 256 to 64", (3, 64, 64), torch.float32, batch=256, new_batch=64),
]


def rows_per_second(batches: Iterable[Any], case: Case, seconds: float) -> float:
    """Rate of the rows, once everything has the size that it will have."""
    iterator = iter(batches)
    for _ in range(5 * case.pool // case.new_batch):
        check(next(iterator), case)
    rows = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        rows += check(next(iterator), case)
    return rows / elapsed


def check(batch: Any, case: Case) -> int:
    images, labels = batch
    if tuple(images.shape) != (case.new_batch, *case.shape) or len(labels) != case.new_batch:
        raise SystemExit(f"expected {case.new_batch} rows, got {tuple(images.shape)}")
    return case.new_batch


def measure(cases: list[Case], runs: dict[str, Run], workers: int, rounds: int, seconds: float) -> None:
    for case in cases:
        best = dict.fromkeys(runs, 0.0)
        for _ in range(rounds):
            for name, run in runs.items():
                best[name] = max(best[name], in_fresh_process(run, case, workers, seconds))
        theirs = next(iter(best.values()))
        for name, rate in best.items():
            rate_gb_s = rate * case.row_nbytes / 1e9
            print(f"{case.name:32} {name:22} {rate:9,.0f} {rate_gb_s:8.2f} {rate / theirs:7.1f}", flush=True)


def in_fresh_process(run: Run, case: Case, workers: int, seconds: float) -> float:
    context = multiprocessing.get_context("fork")
    rates = context.SimpleQueue()
    process = context.Process(target=_report, args=(rates, run, case, workers, seconds))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"a run of {case.name} failed")
    rate: float = rates.get()
    return rate


def _report(rates: Any, run: Run, case: Case, workers: int, seconds: float) -> None:
    # What the slow forms keep does not fit into the arenas, and says so.
    warnings.filterwarnings("ignore", message="more than .* batches of one worker are kept")
    batches = run(case, workers)
    rates.put(rows_per_second(batches, case, seconds))
    if hasattr(batches, "close"):
        batches.close()


def their_stages_here(case: Case, workers: int) -> Iterable[Any]:
    filters = webdataset.filters
    rows = filters.unbatched()(itertools.repeat(next(iter(case.dataset))))
    batches: Iterable[Any] = filters.batched(case.new_batch)(filters.shuffle(case.pool)(rows))
    return batches


def rebatched_here(case: Case, workers: int) -> Iterable[Any]:
    return Rebatched(case.new_batch, case.pool)(itertools.repeat(next(iter(case.dataset))))


LOADERS: dict[str, Run] = {
    "webdataset.WebLoader": Case.their_web_loader,
    "mpwds.WebLoader": Case.our_web_loader,
    "MultiLoader, stages": Case.our_loader,
    "MultiLoader.rebatched": Case.rebatched,
}
HERE: dict[str, Run] = {"webdataset's stages": their_stages_here, "rebatched": rebatched_here}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each loader in each case")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a run, once it is warm")
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--workers", type=int, default=2)
    groups = [case.group for case in CASES]
    parser.add_argument("--only", nargs="+", choices=groups, default=groups)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 0.2

    versions = (
        f"Python {platform.python_version()}, torch {torch.__version__}, webdataset {webdataset.__version__}"
    )
    print(f"{platform.machine()}, {os.cpu_count()} cores, {versions}")
    print(
        f"best of {options.rounds} alternating runs of {options.seconds:g} s, a pool of {CASES[0].pool} rows"
    )
    cases = [case for case in CASES if case.group in options.only]
    for name, runs in ((f"{options.workers} workers", LOADERS), ("here", HERE)):
        print(f"\n{name:55} {'rows/s':>9} {'GB/s':>8} {'ratio':>7}")
        measure(cases, runs, options.workers, options.rounds, options.seconds)


if __name__ == "__main__":
    main()
