"""Measures what a loader's stats cost, and how true they are.

    python tools/bench/stages.py
    python tools/bench/stages.py --rounds 3 --only cost

*Cost*: processor time of a worker's work on an epoch (all that ``mpwds.loader.worker.worker`` does but the
messages), with the meter and without it, in turn; medians of all rounds. *Noise* is the ratio of two series
without it. Pipelines of small elements are the hard ones; the message of a batch takes 10 us more, which are
in no row.

*Truth*: a pipeline whose stages look at the clock themselves: native code that keeps the interpreter's lock
(the sum of a range), native code that lets go of it (zlib), waiting (``time.sleep``), and Python. Beside what
the clock and the stats say stands what a thread says that looks every 10 ms where the main thread stands.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from mpwds import DataPipeline, nest, tenbin
from mpwds.pipeline.context import Context
from mpwds.pipeline.iterable_sources import iter_elements
from mpwds.stats.counters import Counters
from mpwds.stats.profiler import StageProfiler

ALONE = Context(owns_process=True, deferred=True)
NOISE = os.urandom(40_000)
IMAGE = np.zeros((64, 64, 3), np.uint8)


class Writer:
    """Writes batches into memory, as a worker does that puts them into a block."""

    def __init__(self) -> None:
        self._memory = bytearray(4 << 20)

    def write(self, batch: Any) -> int:
        _, arrays = nest.flatten(batch, allow_pickle=True)
        end = 0
        for array in arrays:
            tenbin.write_array(self._memory, end, array)
            end += tenbin.array_nbytes(array)
        return end


def run_bare(dataset: Any) -> int:
    writer = Writer()
    count = 0
    for element in iter_elements(dataset.stream(ALONE)):
        writer.write(element)
        count += 1
    return count


def run_metered(dataset: Any) -> int:
    writer, meter = Writer(), StageProfiler(Counters(), dataset.samples_in)
    count = 0
    with meter.epoch():
        stream = dataset.stream(replace(ALONE, watch=meter.watch))
        for element in meter.elements(iter_elements(stream)):
            meter.sending(meter.samples_in(element), writer.write(element))
            count += 1
    return count


def unpacked(number: int) -> Any:
    return np.frombuffer(zlib.compress(NOISE[:2000]), np.uint8)[:100]


def as_image(number: int) -> Any:
    return IMAGE, number


def decoded_slowly(number: int) -> Any:
    zlib.compress(NOISE, 6)
    return number


CASES: dict[str, Any] = {
    "numbers, one by one": DataPipeline(range(100_000)),
    "numbers in batches of 256": DataPipeline(range(800_000)).batched(256),
    "numbers through 3 maps, batches of 64": DataPipeline(range(50_000))
    .map(abs)
    .map(abs)
    .map(abs)
    .batched(64),
    "1 kB arrays through a map, batches of 256": DataPipeline(range(10_000)).map(unpacked).batched(256),
    "12 kB images, batches of 64": DataPipeline(range(50_000)).map(as_image).batched(64),
    "1 ms samples, batches of 16": DataPipeline(range(800)).map(decoded_slowly).batched(16),
}


def cpu_seconds(run: Callable[[Any], int], dataset: Any) -> float:
    start = time.process_time()
    run(dataset)
    return time.process_time() - start


def measure_cost(rounds: int) -> None:
    print(f"{'':44} {'us each':>9} {'us more':>9} {'ratio':>7} {'noise':>7}")
    for name, dataset in CASES.items():
        count = run_bare(dataset)
        runs = {"bare": run_bare, "metered": run_metered, "bare again": run_bare}
        times: dict[str, list[float]] = {kind: [] for kind in runs}
        for _ in range(rounds):
            for kind, run in runs.items():
                times[kind].append(cpu_seconds(run, dataset))
        bare, metered, again = map(statistics.median, times.values())
        usual = (bare + again) / 2
        print(
            f"{name:44} {usual / count * 1e6:9.1f} {(metered - usual) / count * 1e6:9.1f} "
            f"{metered / usual:7.3f} {again / bare:7.3f}",
            flush=True,
        )


def keeps_the_lock(number: int) -> int:
    sum(range(30_000))
    return number


def lets_go(number: int) -> int:
    zlib.compress(NOISE, 6)
    return number


def waits(number: int) -> int:
    time.sleep(0.001)
    return number


def in_python(number: int) -> int:
    total = 0
    for i in range(8_000):
        total += i
    return number


STAGES = (keeps_the_lock, lets_go, waits, in_python)


def measure_truth(seconds: float) -> None:
    spent: Counter[str] = Counter()

    def clocked(function: Callable[[int], int]) -> Callable[[int], int]:
        def call(number: int) -> int:
            start = time.perf_counter()
            try:
                return function(number)
            finally:
                spent[function.__name__] += time.perf_counter() - start

        call.__name__ = function.__name__
        return call

    dataset: Any = DataPipeline(range(1_000_000))
    for function in STAGES:
        dataset = dataset.map(clocked(function))
    page = Counters()
    meter = StageProfiler(page, dataset.samples_in)
    context = replace(ALONE, watch=meter.watch)
    with Looker() as looker, meter.epoch():
        deadline = time.monotonic() + seconds
        for _ in meter.elements(iter_elements(dataset.stream(context))):
            if time.monotonic() > deadline:
                break
    said = {name: stage.time_ns for name, stage in page.read().stages.items()}
    print(f"\n{'':20} {'clock':>8} {'stats':>8} {'a thread that looks':>20}")
    for function in STAGES:
        name = function.__name__
        clock = spent[name] / sum(spent.values())
        stats = said[f"map({name})"] / sum(said.values())
        looked = looker.found[name] / max(sum(looker.found.values()), 1)
        print(f"{name:20} {clock:8.1%} {stats:8.1%} {looked:20.1%}")


class Looker:
    """Looks every 10 ms which of the stages' functions the main thread is in."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()
        self._done = threading.Event()
        self._main = threading.get_ident()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Looker:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        names = {function.__name__ for function in STAGES}
        while not self._done.wait(0.01):
            for frame in _frames(sys._current_frames()[self._main]):
                if frame.f_code.co_name in names:
                    self.found[frame.f_code.co_name] += 1
                    break


def _frames(frame: Any) -> Iterator[Any]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7, help="runs with and without the meter")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of the run against the clock")
    parser.add_argument("--only", nargs="+", choices=["cost", "truth"], default=["cost", "truth"])
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    if "cost" in options.only:
        measure_cost(options.rounds)
    if "truth" in options.only:
        measure_truth(options.seconds)


if __name__ == "__main__":
    main()
