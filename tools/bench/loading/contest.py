"""Runs contestants in turn, each in a fresh process, and tells how they compare."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import multiprocessing
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import psutil

LONGEST_RUN_S = 180
LEAST_BATCHES = 12


@dataclass(frozen=True)
class Contestant:
    """One way to get batches.

    Args:
        name: What it is called.
        batches: Makes an endless iterable of them, with its workers, which is closed if it has a ``close``.
        goal: The ratio aimed at, of the contest's reference to this one.
        package: What must be installed for it.
    """

    name: str
    batches: Callable[[], Iterable[Any]]
    goal: float | None = None
    package: str = "mpwds"


@dataclass(frozen=True)
class Contest:
    """Contestants that do the same work.

    Args:
        name: What the work is.
        contestants: The first of them is the reference.
        samples: Samples in a batch.
        workers: How many processes do the work.
        warm_up: Batches that are not counted.
        reads: The training process reads every byte of a batch, not one value of it.
    """

    name: str
    contestants: list[Contestant]
    samples: int
    workers: int = 2
    warm_up: int = 12
    reads: bool = False


@dataclass(frozen=True)
class Result:
    """What one run, or the best of several, came to.

    Args:
        seconds: For a sample.
        cpu_s: Processor time of all processes for a sample.
        trainer_s: Processor time of the process that iterates for a batch.
        first_s: From nothing to the first batch.
    """

    seconds: float
    cpu_s: float
    trainer_s: float
    first_s: float

    def or_better(self, other: Result) -> Result:
        """The better of both in each respect."""
        mine, others = vars(self).values(), vars(other).values()
        return Result(*map(min, mine, others))


def hold(contest: Contest, rounds: int, seconds: float) -> dict[str, Result]:
    """Lets all contestants run in turn; prints and returns the best of each."""
    print(f"\n{contest.name}, {contest.workers} workers")
    print(f"{'':46}samples/s  CPU/sample  trainer/batch  first batch   ratio    CPU  goal")
    present = [one for one in contest.contestants if is_installed(one.package)]
    best: dict[str, Result] = {}
    for _ in range(rounds):
        for contestant in present:
            result = _in_fresh_process(contestant, contest, seconds)
            best[contestant.name] = result.or_better(best.get(contestant.name, result))
    reference = best[contest.contestants[0].name]
    for contestant in contest.contestants:
        if contestant in present:
            _show(contestant, best[contestant.name], reference)
        else:
            print(f"{contestant.name:46}left out: {contestant.package} is not installed", flush=True)
    return best


def machine(*packages: str) -> str:
    """What the figures were taken on: processors, Python, versions of the packages that are installed."""
    found = [f"{os.cpu_count()} cores", f"Python {platform.python_version()}"]
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{package} {metadata.version(package)}")
    return ", ".join(found)


def is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False


def _show(contestant: Contestant, result: Result, reference: Result) -> None:
    goal = "" if contestant.goal is None else f"{contestant.goal:6g}"
    print(
        f"{contestant.name:46}{1 / result.seconds:9,.0f} {result.cpu_s * 1e6:8,.1f} us "
        f"{result.trainer_s * 1e6:11,.1f} us {result.first_s:10.2f} s "
        f"{result.seconds / reference.seconds:7.2f} {result.cpu_s / reference.cpu_s:6.2f}{goal}",
        flush=True,
    )


def _in_fresh_process(contestant: Contestant, contest: Contest, seconds: float) -> Result:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryFile("w+") as output:
        process = context.Process(target=_report, args=(theirs, output, contestant, contest, seconds))
        process.start()
        theirs.close()
        try:
            if not ours.poll(LONGEST_RUN_S):
                raise TimeoutError(f"no result in {LONGEST_RUN_S} s")
            result: Result = ours.recv()
        except (EOFError, TimeoutError) as error:
            output.seek(0)
            _kill(process)
            raise SystemExit(f"{contestant.name} failed: {error}\n{output.read()}") from None
        process.join(LONGEST_RUN_S)
        _kill(process)
    return result


def _kill(process: Any) -> None:
    if process.is_alive():
        for descendant in psutil.Process(process.pid).children(recursive=True):
            descendant.kill()
        process.kill()
        process.join()


def _report(results: Any, output: Any, contestant: Contestant, contest: Contest, seconds: float) -> None:
    # What others say on their way out is of interest only if they fail.
    os.dup2(output.fileno(), 2)
    results.send(_run(contestant, contest, seconds))


def _run(contestant: Contestant, contest: Contest, seconds: float) -> Result:
    start = time.perf_counter()
    batches = contestant.batches()
    iterator = iter(batches)
    _use(next(iterator), contest)
    first_s = time.perf_counter() - start
    for _ in range(contest.warm_up - 1):
        _use(next(iterator), contest)
    here = psutil.Process()
    processes = [here.pid, *(child.pid for child in here.children(recursive=True))]
    cpu_s, trainer_s, start = _cpu_seconds(processes), time.process_time(), time.perf_counter()
    count, elapsed = 0, 0.0
    while elapsed < seconds or count < LEAST_BATCHES:
        # A batch of each worker: theirs come about together.
        for _ in range(contest.workers):
            _use(next(iterator), contest)
            count += 1
        elapsed = time.perf_counter() - start
    trainer_s = time.process_time() - trainer_s
    cpu_s = _cpu_seconds(processes) - cpu_s
    samples = count * contest.samples
    for closable in (iterator, batches):
        if hasattr(closable, "close"):
            closable.close()
    del iterator, batches
    gc.collect()
    return Result(elapsed / samples, cpu_s / samples, trainer_s / count, first_s)


def _cpu_seconds(processes: list[int]) -> float:
    """Processor time of all their threads, exact where other counters give hundredths of a second."""
    threads = [thread for pid in processes for thread in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def _use(batch: Any, contest: Contest) -> None:
    """Looks at a batch as little as a training loop can, or reads it."""
    while isinstance(batch, (dict, list, tuple)):
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    if len(batch) != contest.samples:
        raise SystemExit(f"expected {contest.samples} samples, got {len(batch)}")
    array = np.asarray(batch)
    if contest.reads:
        np.add.reduce(array.reshape(-1).view(np.int64))
    else:
        array.item(0)
