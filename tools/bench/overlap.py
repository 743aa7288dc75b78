"""Measures calls that wait: overlapped by threads or as coroutines, and dealt to workers.

    python tools/bench/overlap.py                    # a minute
    python tools/bench/overlap.py --rounds 1

100 items wait 20 ms each, 16 at a time: ``map(f, threads=16)`` with a function and with a coroutine function,
``torchdata.nodes.ParallelMapper`` and SPDL's pipeline, where these are installed (``pip install torchdata
spdl``). Then a step of 10 ms takes elements that a stage behind a loader makes in 10 ms. Then four workers
make elements of which every fourth waits 50 ms, in any order, with ``streams=`` and without. A figure is the
best of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import time
from collections.abc import Callable, Iterable

import mpwds

ITEMS, WAIT_S, THREADS, STEP_S = 100, 0.02, 16, 0.01
WORKERS, UNEVEN_S = 4, 0.05


def wait(item: int) -> int:
    time.sleep(WAIT_S)
    return item


async def wait_as_coroutine(item: int) -> int:
    await asyncio.sleep(WAIT_S)
    return item


def wait_sometimes(item: int) -> int:
    time.sleep(UNEVEN_S if item % WORKERS == 0 else 0)
    return item


def work(item: int) -> int:
    time.sleep(STEP_S)
    return item


def torchdata_nodes() -> Iterable[int]:
    from torchdata.nodes import IterableWrapper, Loader, ParallelMapper

    return Loader(ParallelMapper(IterableWrapper(range(ITEMS)), wait, num_workers=THREADS, method="thread"))


def spdl() -> Iterable[int]:
    from spdl.pipeline import PipelineBuilder

    builder = PipelineBuilder().add_source(range(ITEMS)).pipe(wait, concurrency=THREADS)
    pipeline = builder.add_sink(THREADS).build(num_threads=THREADS)
    with pipeline.auto_stop():
        yield from pipeline


def best(rounds: int, make: Callable[[], Iterable[int]], step_s: float = 0.0) -> float:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _item in make():
            time.sleep(step_s)
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    items = mpwds.DataPipeline(range(ITEMS))
    runs: dict[str, Callable[[], Iterable[int]]] = {
        "mpwds map(f)": lambda: items.map(wait),
        f"mpwds map(f, threads={THREADS})": lambda: items.map(wait, threads=THREADS),
        f"mpwds map(coroutine function, threads={THREADS})": lambda: items.map(
            wait_as_coroutine, threads=THREADS
        ),
    }
    runs |= {} if importlib.util.find_spec("torchdata") is None else {"torchdata.nodes": torchdata_nodes}
    runs |= {} if importlib.util.find_spec("spdl") is None else {"SPDL": spdl}
    print(f"{ITEMS} items that wait {1000 * WAIT_S:.0f} ms")
    for name, make in runs.items():
        print(f"  {name:48} {best(rounds, make):6.2f} s")
    print(f"a step of {1000 * STEP_S:.0f} ms, and a stage of {1000 * STEP_S:.0f} ms behind a loader")
    with mpwds.MultiLoader(items, workers=1, output="numpy") as loader:
        stages = {"map(f)": loader.map(work), "map(f, threads=2)": loader.map(work, threads=2)}
        stages["map(f).prefetch(2)"] = loader.map(work).prefetch(2)
        for name, elements in stages.items():
            each = best(rounds, lambda made=elements: made, STEP_S) / ITEMS
            print(f"  {f'mpwds {name}':48} {1000 * each:6.1f} ms a step")
    uneven = mpwds.DataPipeline(range(4 * ITEMS)).map(wait_sometimes)
    ideal_s = ITEMS * UNEVEN_S / WORKERS
    print(
        f"{4 * ITEMS} items, every fourth waits {1000 * UNEVEN_S:.0f} ms; {WORKERS} workers, "
        f"at best {ideal_s:.2f} s"
    )
    for streams in (None, 16 * WORKERS):
        with mpwds.MultiLoader(
            uneven, workers=WORKERS, streams=streams, in_order=False, output="numpy"
        ) as loader:
            loader.warm_up()
            took_s = best(rounds, lambda each=loader: each)
        print(f"  {f'mpwds streams={streams}':48} {took_s:6.2f} s, {ideal_s / took_s:.2f} of the best")


if __name__ == "__main__":
    main()
