"""Runs loaders of all kinds for minutes, well and badly treated, and tells whether anything grows.

    python tools/soak.py                # five minutes
    python tools/soak.py --minutes 1 --seed 3

Turn after turn, one of the loaders is given something to do, at random: an epoch, one left early, batches
that are kept, batches that grow, a dataset that raises, a worker that is killed, a loader that is dropped.
Some loaders, the veterans, are never closed nor harmed, so that their workers can be watched. At each
interval a line tells what the training process and its workers have, with nothing under way but the veterans.

The exit status is 1 if one of these figures grew: if its slope (the median of the slopes between any two
lines behind the warm-up) comes to more, over that time, than chance explains (``ALLOWED``).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import os
import random
import signal
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch.utils.data

import mpwds

LENGTH = 40
WARM_UP = 0.4
"""The part of the lines that do not count: caches, pools and allocators fill."""

LEAST_LINES = 6


class Figures(NamedTuple):
    """What a training process and its workers have."""

    rss_mb: float
    workers_pss_mb: float
    descriptors: float
    mappings: float
    threads: float
    processes: float


ALLOWED = Figures(rss_mb=12, workers_pss_mb=12, descriptors=0.5, mappings=12, threads=0.5, processes=0.5)
"""How much each may seem to grow over the whole time that counts."""


class Misfortune(Exception):
    """Raised by datasets here."""


class Numbers(torch.utils.data.Dataset[Any]):
    """Map-style: arrays of ``size`` numbers, each larger than the one before by ``growth``.

    Args:
        size: Numbers in the first array.
        growth: What each has more than the one before.
        fault: What happens at element ``LENGTH // 2``: ``"raise"``, ``"kill"`` or ``"exit"``.
    """

    def __init__(self, size: int, growth: int = 0, fault: str = "") -> None:
        self.size, self.growth, self.fault = size, growth, fault

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        if self.fault and index == LENGTH // 2:
            if self.fault == "raise":
                raise Misfortune
            if self.fault == "exit":
                os._exit(3)
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full(self.size + index * self.growth, index)


class Soak:
    """Loaders, and what is done with them.

    Args:
        seed: Determines what is done in which order.
    """

    def __init__(self, seed: int) -> None:
        self.batches = 0
        self._random = random.Random(seed)
        self._veterans: list[Any] = [
            mpwds.MultiLoader(Numbers(20_000), workers=2, output="numpy"),
            mpwds.MultiLoader(Numbers(10), workers=1, start_method="fork"),
            mpwds.MultiLoader(Numbers(5_000, growth=500), workers=2, start_method="forkserver"),
            mpwds.DataLoader(Numbers(20_000), 4, num_workers=2, persistent_workers=True),
        ]
        self._actions: list[Callable[[], None]] = [
            self._veterans_epoch,
            self._veterans_epoch,
            self._veteran_left_early,
            self._kept_batches,
            self._short_lived,
            self._rebatched,
            self._dataloader,
            self._two_iterators,
            self._in_a_thread,
            self._misfortune,
            self._killed_worker,
        ]

    def begin(self) -> None:
        """Starts the veterans' workers."""
        for loader in self._veterans:
            self._take(loader)

    def turn(self) -> None:
        """Does one thing."""
        self._random.choice(self._actions)()

    def close(self) -> None:
        """Ends all workers."""
        for loader in self._veterans:
            loader.close()

    def _take(self, loader: Iterable[Any], most: int | None = None) -> None:
        for _ in itertools.islice(loader, most):
            self.batches += 1

    def _size(self) -> int:
        return self._random.choice([10, 3_000, 50_000, 200_000])

    def _multi(self, dataset: Any, **options: Any) -> mpwds.MultiLoader:
        # Fresh interpreters take a second of both processors, so the others come more often.
        method = self._random.choice(["fork"] * 8 + ["spawn", "forkserver"])
        in_order = self._random.random() < 0.5
        return mpwds.MultiLoader(dataset, workers=2, start_method=method, in_order=in_order, **options)

    def _veterans_epoch(self) -> None:
        self._take(self._random.choice(self._veterans))

    def _veteran_left_early(self) -> None:
        self._take(self._random.choice(self._veterans), self._random.randrange(LENGTH // 4))

    def _kept_batches(self) -> None:
        kept = list(self._random.choice(self._veterans[:3]))
        self.batches += len(kept)

    def _short_lived(self) -> None:
        loader = self._multi(Numbers(self._size(), growth=self._random.choice([0, 100])))
        self._take(loader, self._random.choice([None, 5]))
        if self._random.random() < 0.5:
            loader.close()

    def _rebatched(self) -> None:
        loader = self._multi(Numbers(256), output="numpy")
        self._take(loader.rebatched(100, shuffle=1000), self._random.choice([None, 3]))
        loader.close()

    def _dataloader(self) -> None:
        context = self._random.choice([None, "fork"])
        loader = mpwds.DataLoader(Numbers(self._size()), 4, num_workers=2, multiprocessing_context=context)
        self._take(loader, self._random.choice([None, 2]))

    def _two_iterators(self) -> None:
        loader = mpwds.DataLoader(Numbers(3_000), 4, num_workers=1)
        self._take(zip(loader, loader, strict=True))

    def _in_a_thread(self) -> None:
        thread = threading.Thread(target=self._take, args=(self._multi(Numbers(self._size())),))
        thread.start()
        thread.join()

    def _misfortune(self) -> None:
        dataset = Numbers(self._size(), fault=self._random.choice(["raise", "kill", "exit"]))
        loaders = [self._multi, lambda dataset: mpwds.DataLoader(dataset, 4, num_workers=2)]
        with contextlib.suppress(Misfortune, mpwds.WorkerDied):
            self._take(self._random.choice(loaders)(dataset))

    def _killed_worker(self) -> None:
        with self._multi(Numbers(self._size())) as loader:
            iterator = iter(loader)
            self._take(iterator, self._random.randrange(4))
            os.kill(self._random.choice(loader.worker_pids), signal.SIGKILL)
            with contextlib.suppress(mpwds.WorkerDied):
                self._take(iterator)


def figures() -> Figures:
    """Those of this process and its workers, now."""
    gc.collect()
    here = psutil.Process()
    workers = here.children(recursive=True)
    pss = 0
    for worker in workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            pss += worker.memory_full_info().pss
    with open("/proc/self/maps") as maps:
        mappings = sum(1 for _ in maps)
    memory, descriptors = here.memory_info().rss, len(os.listdir("/proc/self/fd"))
    return Figures(memory / 1e6, pss / 1e6, descriptors, mappings, here.num_threads(), len(workers))


def growth(values: list[float]) -> float:
    """How much values grow from the first to the last, by the median of the slopes between any two.

    Example:
        >>> growth([1.0, 2.0, 3.0, 100.0, 5.0])
        4.0
    """
    pairs = itertools.combinations(enumerate(values), 2)
    slopes = [(late - early) / (after - before) for (before, early), (after, late) in pairs]
    return statistics.median(slopes) * (len(values) - 1)


def what_grew(lines: list[Figures]) -> list[str]:
    """What grew over the lines behind the warm-up by more than is allowed, and by how much."""
    counted = lines[int(len(lines) * WARM_UP) :]
    grown = []
    for name, allowed in ALLOWED._asdict().items():
        grew = growth([getattr(line, name) for line in counted])
        if grew > allowed:
            grown.append(f"{name} by {grew:.1f} in {len(counted)} lines ({allowed:g} allowed)")
    return grown


def interval(soak: Soak, seconds: float) -> float:
    """Takes turns for some seconds, one at least; returns the batches per second."""
    began, before = time.monotonic(), soak.batches
    while True:
        soak.turn()
        if (taken_s := time.monotonic() - began) >= seconds:
            return (soak.batches - before) / taken_s


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--interval", type=float, default=10.0, help="seconds from line to line")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message="more than .* batches of one worker are kept")
    soak = Soak(arguments.seed)
    lines: list[Figures] = []
    print("seconds  batches/s  " + "  ".join(name.rjust(8) for name in Figures._fields), flush=True)
    start = time.monotonic()
    try:
        soak.begin()
        while len(lines) < LEAST_LINES or time.monotonic() < start + arguments.minutes * 60:
            rate = interval(soak, arguments.interval)
            lines.append(figures())
            shown = "  ".join(
                f"{value:{max(8, len(name))}.0f}" for name, value in lines[-1]._asdict().items()
            )
            print(f"{time.monotonic() - start:7.0f}  {rate:9.0f}  {shown}", flush=True)
    finally:
        soak.close()
    grown = what_grew(lines)
    print(f"not flat: {'; '.join(grown)}" if grown else "flat")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
