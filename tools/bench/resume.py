"""Measures how soon a resumed epoch delivers, early and late in it, and what states cost while it runs.

    python tools/bench/resume.py                     # eight minutes
    python tools/bench/resume.py --only mpwds states # without other packages
    python tools/bench/resume.py --quick             # a third of the samples

An epoch is 300,000 samples in 300 shards (links to one file), read by two workers in batches of 100, with
shuffled shards and a buffer of 1,000 samples (``streams=24``: of 83 in each stream). Each batch waits 20 ms,
as if 200 us of work were done for a sample. Each package reads its own format.

A loader delivers 99 % of the epoch, and saves states from 1 % on and before 99 %. Then new loaders load them
in turn: a time is from a loader's construction to its first batch, and a figure the median over the
states. Work since the last state of a worker is repeated, which takes up to a second or so. A package that
runs the epoch again from its start shows that here. Energon does not: each of its workers reads the samples
of its buffer again, one at a time by their indexes, which takes as long early in the epoch as late.
Workers of earlier loaders end before a time begins.

The last figures are batches per second with a ``state_dict()`` each second, over those without: medians of
seconds with and without it, in turn.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from loading import formats
from loading.formats import Sample

import mpwds

BATCH, WORKERS, STREAMS, PER_SHARD = 100, 2, 24, 1000
WAIT_S = 0.02  # for a batch
CHOICES = ["mpwds", "torchdata", "streaming", "litdata", "energon", "states"]

Make = Callable[[], Any]


def pause(batch: Any) -> Any:
    time.sleep(WAIT_S)
    return batch


def of_mpwds(urls: str, streams: int | None, endless: bool = False) -> Any:
    buffer = 1000 if streams is None else 1000 * WORKERS // streams
    samples = mpwds.WebDataset(urls, shardshuffle=True, seed=0).shuffle(buffer)
    dataset = samples.decode().to_tuple("cls").batched(BATCH)
    dataset = dataset.repeat() if endless else dataset.map(pause)
    return mpwds.MultiLoader(dataset, workers=WORKERS, streams=streams)


class Samples(torch.utils.data.IterableDataset[Any]):
    """The shards through webdataset, without a state, as most programs have it."""

    def __init__(self, urls: str) -> None:
        self._urls = urls

    def __iter__(self) -> Iterator[Any]:
        import webdataset

        shards = webdataset.WebDataset(self._urls, shardshuffle=1000, seed=0, workersplitter=split)
        return map(pause, shards.shuffle(1000, seed=0).decode().to_tuple("cls").batched(BATCH))


def split(urls: Iterator[Any]) -> Iterator[Any]:
    info = torch.utils.data.get_worker_info()
    return (url for number, url in enumerate(urls) if number % info.num_workers == info.id)


def of_torchdata(urls: str) -> Make:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return lambda: StatefulDataLoader(Samples(urls), batch_size=None, num_workers=WORKERS)


def of_streaming(folder: Path, samples: list[Sample], shards: int) -> Make:
    streaming = formats.import_streaming()
    from streaming.base.util import clean_stale_shared_memory

    formats.write_mds(folder, {"cls": "int"}, samples, shards)

    def make() -> Any:
        clean_stale_shared_memory()
        dataset = streaming.StreamingDataset(local=str(folder), shuffle=True, batch_size=BATCH)
        return streaming.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=WORKERS, collate_fn=pause)

    return make


def of_litdata(folder: Path, samples: list[Sample], shards: int) -> Make:
    import litdata

    formats.write_litdata(folder, samples, shards)

    def make() -> Any:
        dataset = litdata.StreamingDataset(str(folder), shuffle=True)
        return litdata.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=WORKERS, collate_fn=pause)

    return make


class Energon:
    """Energon's loader, which keeps a state of its workers each second, with names as others have them."""

    def __init__(self, folder: Path) -> None:
        self._loader = formats.energon_loader(folder, class_of, pause, BATCH, WORKERS, buffer=1000)
        self.state_dict, self.load_state_dict = self._loader.save_state_rank, self._loader.restore_state_rank

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)


def class_of(sample: Sample) -> int:
    return int(sample["cls"])


def of_energon(folder: Path, samples: list[Sample], shards: int) -> Make:
    import megatron.energon  # noqa: F401  # is it installed?

    formats.write_shards(folder, samples * shards, PER_SHARD)
    formats.prepare_energon(folder)
    return partial(Energon, folder)


def states_at(make: Make, batches: list[int]) -> list[Any]:
    """The states of an epoch after so many batches."""
    loader, states = make(), []
    for number, _batch in enumerate(loader, 1):
        if number in batches:
            states.append(loader.state_dict())
        if len(states) == len(batches):
            break
    close(loader)
    return states


def first_batch_s(make: Make, state: Any) -> float:
    # Energon 7.4's loader has no close() and lives in a reference cycle until it is collected. torch then
    # waits 5 s for each of its workers, which must not happen while the next loader is timed.
    gc.collect()
    began = time.perf_counter()
    loader = make()
    loader.load_state_dict(state)
    next(iter(loader))
    took = time.perf_counter() - began
    close(loader)
    return took


def close(loader: Any) -> None:
    if hasattr(loader, "close"):
        loader.close()


def resumed(name: str, make: Make, batches: int, rounds: int) -> None:
    early, late, step = batches // 100, batches * 99 // 100, batches // 1000
    at_1 = [early + number * step for number in range(rounds)]
    at_99 = [late - number * step for number in reversed(range(rounds))]
    try:
        states = states_at(make, at_1 + at_99)
        pairs = zip(states[:rounds], states[rounds:], strict=True)
        times = [[first_batch_s(make, state) for state in pair] for pair in pairs]
    except Exception as error:
        print(f"{name:40} failed: {type(error).__name__}: {str(error)[:120]}", flush=True)
        return
    early_s, late_s = map(statistics.median, zip(*times, strict=True))
    print(f"{name:40} {early_s:8.2f} s {late_s:8.2f} s {late_s / early_s:8.2f}", flush=True)


def states_cost(make: Make, rounds: int) -> tuple[float, float, float]:
    """The throughput with a state each second over that without: by clock and by processor; a state's ms.

    Processor time is that of the trainer and its workers: other programs disturb it less.
    """
    loader, took_ms = make(), list[float]()
    batches = iter(loader)
    for _ in range(50):
        next(batches)
    workers = [psutil.Process(pid) for pid in loader.worker_pids]

    def processor_s() -> float:
        return time.process_time() + sum(sum(worker.cpu_times()[:2]) for worker in workers)

    rates: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for number in range(2 * rounds):
        on, count, began, used_s = number % 4 in (0, 3), 0, time.perf_counter(), processor_s()
        if on:
            at = time.process_time()
            loader.state_dict()
            took_ms.append(1000 * (time.process_time() - at))
        while (now := time.perf_counter()) < began + 1:
            next(batches)
            count += 1
        rates[on].append((count / (now - began), count / (processor_s() - used_s)))
    loader.close()
    with_states, without = (map(statistics.median, zip(*rates[on], strict=True)) for on in (True, False))
    clock, processor = (a / b for a, b in zip(with_states, without, strict=True))
    return clock, processor, statistics.median(took_ms)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="+", choices=CHOICES)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    shards = 100 if options.quick else 300
    batches = shards * PER_SHARD // BATCH
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{'seconds to the first batch, resumed at':40} {'1 %':>10} {'99 %':>10} {'ratio':>8}")
    folder = Path(tempfile.mkdtemp())
    try:
        samples: list[Sample] = [{"cls": number} for number in range(PER_SHARD)]
        urls = formats.write_tar(folder / "tar", samples, shards)
        contestants: dict[str, tuple[str, Callable[[], Make], int]] = {
            "mpwds": ("mpwds, streams=None", lambda: partial(of_mpwds, urls, None), options.rounds),
            "mpwds, streams": (
                f"mpwds, streams={STREAMS}",
                lambda: partial(of_mpwds, urls, STREAMS),
                options.rounds,
            ),
            "torchdata": (
                "torchdata StatefulDataLoader, webdataset",
                lambda: of_torchdata(urls),
                1,
            ),
            "streaming": (
                "mosaicml-streaming",
                lambda: of_streaming(folder / "mds", samples, shards),
                options.rounds,
            ),
            "litdata": (
                "litdata",
                lambda: of_litdata(folder / "litdata", samples, shards),
                options.rounds,
            ),
            "energon": (
                "Energon",
                lambda: of_energon(folder / "energon", samples, shards),
                options.rounds,
            ),
        }
        for key, (name, prepare, rounds) in contestants.items():
            package = key.partition(",")[0]
            if options.only and package not in options.only:
                continue
            try:
                make = prepare()
            except ImportError as error:
                print(f"{name:40} is not installed: {error}")
                continue
            resumed(name, make, batches, rounds)
        if options.only and "states" not in options.only:
            return
        print("throughput with a state each second, over that without")
        for streams in (None, STREAMS):
            make = partial(of_mpwds, urls, streams, endless=True)
            clock, processor, took_ms = states_cost(make, 4 * options.rounds)
            print(
                f"{f'mpwds, streams={streams}':40} {clock:8.3f}, by processor time {processor:.3f}; "
                f"a state takes {took_ms:.1f} ms"
            )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
