"""Measures how costs grow: with the shards, the workers, the size of a batch, and the servers.

    python tools/bench/growth.py                     # all, about six minutes
    python tools/bench/growth.py --quick             # a minute, less exact
    python tools/bench/growth.py --only workers servers --json growth.json

``shards``: milliseconds from a list of shards to the first shard of an epoch, in one worker of 8. The list is
one pattern, or a list of names. No shard is read.

``batches``: ready batches of 1 kB to 256 MB, as in transport.py: a ``MultiLoader`` with one worker and
with two, beside torch's ``DataLoader``.

``workers``: a worker waits 50 ms for each batch of 256 kB, in place of work. So a few cores show what the
loader itself costs with many workers. ``at best`` is a batch of each worker every 50 ms.

``servers``: a ``RemoteLoader`` with one worker of each server. One process simulates the servers: it speaks
their protocol at so many TCP ports, and sends ready batches of 4 kB. A figure tells what the trainer can
receive, and how long it takes from nothing to the first batch of every server. Most of that time goes into
batches that fill the windows of all workers, half a megabyte each, because simulated servers need no time.

A figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zmq

sys.path.insert(0, str(Path(__file__).parent))  # benchmarks import each other
from loading.contest import machine
from shard_lists import first_shards
from transport import Case, close

import mpwds
from mpwds import nest, tenbin
from mpwds.feed import wire
from mpwds.feed.wire import DataHeader
from mpwds.loader.messages.channel import frame_of

WAIT_S = 0.05
WARM_UP_BATCHES = 24  # until two workers have used all their blocks
WORKERS = [1, 2, 4, 8, 16, 32, 64]
NBYTES = [1000 * 4**power for power in range(10)]  # 1 kB to 262 MB
SERVERS = [1, 3, 10, 30, 100, 300, 1000]

Points = list[tuple[int, float]]
"""What was measured, by the size of the thing that grows."""


@dataclass(frozen=True)
class Chart:
    """Curves over the same thing.

    Args:
        title: What was measured.
        grows: What it is measured over.
        curves: The points of each, by its label.
    """

    title: str
    grows: str
    curves: dict[str, Points]


def shards(rounds: int, seconds: float) -> list[Chart]:
    def first_shard_ms(urls: Any) -> float:
        start = time.perf_counter()
        first_shards(mpwds.WebDataset(urls, shardshuffle=True), [0], of=8)
        return 1000 * (time.perf_counter() - start)

    first_shard_ms("x.tar")  # imports what it needs
    curves: dict[str, Points] = {"a pattern": [], "a list of names": []}
    for digits in range(1, 7):
        pattern = f"x-{{{'0' * digits}..{'9' * digits}}}.tar"
        for points, urls in zip(curves.values(), (pattern, mpwds.expand_urls(pattern)), strict=True):
            points.append((10**digits, median(functools.partial(first_shard_ms, urls), rounds)))
    return [Chart("Milliseconds to the first shard", "shards", curves)]


def batches(rounds: int, seconds: float) -> list[Chart]:
    def gb_s(make: Callable[[Case], Any], nbytes: int) -> float:
        loader = make(Case("growth", f"{nbytes} bytes", (nbytes,), "uint8", goal=0))
        rate = batches_a_second(iter(loader), WARM_UP_BATCHES, seconds)
        close(loader)
        return rate * nbytes / 1e9

    loaders: dict[str, Callable[[Case], Any]] = {
        "1 worker": lambda case: case.our_loader(1),
        "2 workers": lambda case: case.our_loader(2),
        "DataLoader, 2 workers": lambda case: case.torch_loader(2),
    }
    curves: dict[str, Points] = {label: [] for label in loaders}
    for nbytes in NBYTES:
        for label, make in loaders.items():
            curves[label].append((nbytes, median(functools.partial(gb_s, make, nbytes), rounds)))
    return [Chart("GB/s of ready batches", "bytes of a batch", curves)]


def workers(rounds: int, seconds: float) -> list[Chart]:
    def waiting() -> Iterator[np.ndarray]:
        array = np.ones(1 << 18, np.uint8)
        while True:
            time.sleep(WAIT_S)
            yield array

    def start_and_rate(count: int) -> tuple[float, float]:
        began = time.perf_counter()
        with mpwds.MultiLoader(waiting, workers=count, output="numpy") as loader:
            started = first_batches_s(loader, count, began)
            return started, batches_a_second(iter(loader), 4 * count, seconds)

    starts, rates = medians(start_and_rate, WORKERS, rounds)
    at_best = [(count, count / WAIT_S) for count in WORKERS]
    return [
        Chart("Batches/s of workers that wait 50 ms", "workers", {"MultiLoader": rates, "at best": at_best}),
        Chart("Seconds to the first batch of each worker", "workers", {"MultiLoader": starts}),
    ]


def servers(rounds: int, seconds: float) -> list[Chart]:
    def start_and_rate(count: int) -> tuple[float, float]:
        with simulated_servers(count) as urls:
            began = time.perf_counter()
            with mpwds.RemoteLoader(urls, output="numpy", shared_memory=False) as loader:
                return first_batches_s(loader, count, began), batches_a_second(iter(loader), count, seconds)

    allow_files()
    starts, rates = medians(start_and_rate, SERVERS, rounds)
    return [
        Chart("Batches/s of 4 kB from simulated servers", "servers", {"RemoteLoader": rates}),
        Chart("Seconds to the first batch of each server", "servers", {"RemoteLoader": starts}),
    ]


def first_batches_s(loader: Any, count: int, began: float) -> float:
    """Seconds since ``began``, when a batch of each worker has come."""
    iterator = iter(loader)
    for _ in range(count):
        next(iterator)
    return time.perf_counter() - began


def batches_a_second(iterator: Iterator[Any], warm_up: int, seconds: float) -> float:
    """The rate at which batches can be taken, after the first ones."""
    for _ in range(warm_up):
        next(iterator)
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds or count < warm_up:
        next(iterator)
        count += 1
    return count / elapsed


def median(measure: Callable[[], float], rounds: int) -> float:
    return statistics.median(measure() for _ in range(rounds))


def medians(
    measure: Callable[[int], tuple[float, float]], counts: list[int], rounds: int
) -> tuple[Points, Points]:
    """The medians of the two figures that a run with each count gives."""
    first, second = [], []
    for count in counts:
        one, other = zip(*(measure(count) for _ in range(rounds)), strict=True)
        first.append((count, statistics.median(one)))
        second.append((count, statistics.median(other)))
    return first, second


@contextlib.contextmanager
def simulated_servers(count: int) -> Iterator[list[str]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, count), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


def _serve(trainer: Any, count: int) -> None:
    """Answers as so many servers with a worker each: one ROUTER, to which each connection is a trainer."""
    allow_files()
    context = zmq.Context()
    context.max_sockets = 4096
    router = context.socket(zmq.ROUTER)
    router.sndhwm = 0
    ports = [router.bind_to_random_port("tcp://127.0.0.1", 20_000, 60_000) for _ in range(count)]
    trainer.send([f"tcp://127.0.0.1:{port}" for port in ports])
    parts: dict[bytes, SimulatedPart] = {}
    while True:
        who, command = router.recv_multipart()
        fields = nest.unpack(command)
        kind = fields["kind"]
        if kind == wire.HELLO:
            router.send_multipart([who, wire.pack(wire.WELCOME, **WELCOME)])
        elif kind == wire.PING:
            pong = {"known": True, "server": "simulated", "number": fields["number"]}
            router.send_multipart([who, wire.pack(wire.PONG, **pong, slots=[], counters={})])
        elif kind == wire.START:
            parts[who] = SimulatedPart(fields["attempt"], fields["window"], fields["first"])
        elif kind == wire.ACK and who in parts:
            parts[who].acknowledge(fields["nbytes"], fields["window"])
        elif kind in (wire.STOP, wire.BYE):
            parts.pop(who, None)
        if kind in (wire.START, wire.ACK) and who in parts:
            for frames in parts[who].fitting():
                router.send_multipart([who, *frames])


def allow_files() -> None:
    """Lets this process open as many files as the system permits: a connection needs several."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


WELCOME = {
    "version": wire.VERSION,
    "server": "simulated",
    "host": "simulated",
    "workers": 1,
    "blocks": 4,
    "handover": None,
    "description": ["ready batches"],
    "seed": None,
    "length": None,
    "in_any_order": False,
    "unaddressed": "it is simulated",
    "self_dividing": None,
    "fingerprint": "0",
}


class SimulatedPart:
    """A worker's part of an epoch without end: sends ready batches as the trainer's window lets it."""

    def __init__(self, attempt: int, window: int, first: int) -> None:
        self._attempt = attempt
        self._first = first
        self._window = window
        self._sent = self._sent_nbytes = self._used_nbytes = 0
        array = np.ones(1000, np.float32)
        self._payload = bytearray(tenbin.array_nbytes(array))
        tenbin.write_array(memoryview(self._payload), 0, array)

    def acknowledge(self, nbytes: int, window: int) -> None:
        self._used_nbytes, self._window = nbytes, window

    def fitting(self) -> Iterator[list[Any]]:
        """The messages that may be sent now."""
        while self._sent_nbytes - self._used_nbytes <= self._window / 2:
            about = {"sequence": self._first + self._sent, "samples": 1, "nbytes": 4000, "generation": 1}
            batch = frame_of({"kind": "batch", "structure": [0], "offsets": [0], **about}, self._payload)
            yield [wire.pack_head(DataHeader(0, self._attempt, self._sent, 0)), batch]
            self._sent += 1
            self._sent_nbytes += len(batch)


PARTS = {"shards": shards, "batches": batches, "workers": workers, "servers": servers}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a run, after warming up")
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    options = parser.parse_args()
    rounds, seconds = (1, 0.2) if options.quick else (options.rounds, options.seconds)
    print(f"{machine('torch')}; medians of {rounds} runs of {seconds:g} s")
    charts = []
    for name in options.only:
        for chart in PARTS[name](rounds, seconds):
            charts.append(vars(chart))
            print_table(chart)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine("torch"), "charts": charts}) + "\n")


def print_table(chart: Chart) -> None:
    print(f"\n{chart.title}\n{chart.grows:>18}" + "".join(f"{label:>25}" for label in chart.curves))
    for row in zip(*chart.curves.values(), strict=True):
        print(f"{row[0][0]:18,}" + "".join(f"{shown(value):>25}" for _, value in row), flush=True)


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    main()
