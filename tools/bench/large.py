"""Measures what a large dataset costs in memory: how much all processes together take, and whether it grows.

    python tools/bench/large.py                        # 2 GB and 4 workers: needs about 16 GB, five minutes
    python tools/bench/large.py --gb 0.25 --strings 1000000

A dataset holds one array, a list of strings or a list of dicts, and is read whole in each epoch. Each loader
runs in a process of its own, which makes the dataset first. Memory is the sum of PSS over trainer and
workers, so that pages which they share count once: ``before`` there are workers, when the ``first`` batch has
come, and after one and three ``epochs``. ``time`` is that to the first batch.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import platform
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

EPOCHS = 3


class Rows:
    """A dataset of the rows of an array; an element tells of each what can be told by reading all of it."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: int) -> float:
        return float(np.asarray(self.array[index]).sum())


class Items:
    """A dataset of Python objects, a thousand in an element, which tells how long they print."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items) // 1000

    def __getitem__(self, index: int) -> int:
        return sum(len(repr(self.items[1000 * index + number])) for number in range(1000))


def array(gb: float) -> Any:
    rows = np.ones((max(8, int(gb * 1e9 / 1e6)), 125_000))
    return Rows(rows)


def shared_array(gb: float) -> Any:
    import mpwds

    return Rows(mpwds.share(array(gb).array))


def tensor(gb: float) -> Any:
    import torch

    return Rows(torch.from_numpy(array(gb).array))


def mapped_file(gb: float) -> Any:
    path = Path(f"large-{os.getpid()}.npy")
    np.save(path, array(gb).array)
    try:
        return Rows(np.load(path, mmap_mode="r"))
    finally:
        path.unlink()


def strings(count: int) -> Any:
    return Items([f"images/train/{number:012}.jpg" for number in range(count)])


def shared_strings(count: int) -> Any:
    import mpwds

    return Items(mpwds.share(strings(count).items))


def records(count: int) -> Any:
    return Items(
        [
            {"name": f"{number:012}.jpg", "label": number % 1000, "boxes": [(number + 0.5, 1.5, 2.5, 3.5)]}
            for number in range(count)
        ]
    )


def shared_records(count: int) -> Any:
    import mpwds

    return Items(mpwds.share(records(count).items))


def webdataset_loader(dataset: Any, workers: int) -> Any:
    """A pipeline whose source holds the objects; each worker reads all of them."""
    import webdataset

    pipeline = webdataset.DataPipeline(functools.partial(elements_of, dataset))
    return torch_loader("fork", pipeline, workers)


def elements_of(dataset: Any) -> Iterator[Any]:
    for index in range(len(dataset)):
        yield dataset[index]


def torch_loader(method: str, dataset: Any, workers: int) -> Any:
    import torch.utils.data

    return torch.utils.data.DataLoader(
        dataset, batch_size=None, num_workers=workers, multiprocessing_context=method, persistent_workers=True
    )


def our_dataloader(dataset: Any, workers: int) -> Any:
    import mpwds

    return mpwds.DataLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=True)


def multi_loader(method: str | None, dataset: Any, workers: int) -> Any:
    import mpwds

    return mpwds.MultiLoader(dataset, workers, start_method=method, output="numpy")


MakeLoader = Callable[[Any, int], Any]

FORK: tuple[str, MakeLoader] = ("DataLoader, fork", functools.partial(torch_loader, "fork"))
FORKSERVER: tuple[str, MakeLoader] = (
    "DataLoader, forkserver",
    functools.partial(torch_loader, "forkserver"),
)
SPAWN: tuple[str, MakeLoader] = ("DataLoader, spawn", functools.partial(torch_loader, "spawn"))
OUR_DATALOADER: tuple[str, MakeLoader] = ("mpwds.DataLoader", our_dataloader)
WEBDATASET: tuple[str, MakeLoader] = ("webdataset, DataLoader", webdataset_loader)
OURS: tuple[str, MakeLoader] = ("MultiLoader", functools.partial(multi_loader, None))
OURS_SPAWNED: tuple[str, MakeLoader] = ("MultiLoader, spawn", functools.partial(multi_loader, "spawn"))
OUR_FORKS: tuple[str, MakeLoader] = ("MultiLoader, fork", functools.partial(multi_loader, "fork"))

CASES: dict[str, list[tuple[Callable[..., Any], str, tuple[str, MakeLoader]]]] = {
    "array": [
        (array, "array", FORK),
        (array, "array", SPAWN),
        (array, "array", OUR_DATALOADER),
        (tensor, "tensor", OUR_DATALOADER),
        (array, "array", OURS),
        (array, "array", OURS_SPAWNED),
        (array, "array", OUR_FORKS),
        (shared_array, "mpwds.share(array)", OURS),
        (mapped_file, "memmap", SPAWN),
        (mapped_file, "memmap", OURS),
    ],
    "strings": [
        (strings, "list of strings", FORK),
        (strings, "list of strings", FORKSERVER),
        (strings, "list of strings", SPAWN),
        (strings, "list of strings", OURS),
        (strings, "list of strings", OURS_SPAWNED),
        (strings, "list of strings", OUR_FORKS),
        (shared_strings, "mpwds.share(list)", OURS),
        (shared_strings, "mpwds.share(list)", FORK),
    ],
    "records": [
        (records, "list of dicts", FORK),
        (records, "list of dicts", FORKSERVER),
        (records, "list of dicts", SPAWN),
        (records, "list of dicts", WEBDATASET),
        (records, "list of dicts", OURS),
        (records, "list of dicts", OUR_FORKS),
        (shared_records, "mpwds.share(list)", OURS),
        (shared_records, "mpwds.share(list)", FORK),
    ],
}


def memory_mb() -> float:
    """PSS of this process and its descendants."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    total = 0
    for process in processes:
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        found = re.search(r"^Pss:\s+(\d+) kB", rollup, re.M)
        total += int(found.group(1)) if found else 0
    return total / 1000


def measure(results: Any, make: Callable[..., Any], size: Any, loader_of: MakeLoader, workers: int) -> None:
    """Runs one loader, in a process of its own."""
    dataset = make(size)
    warm(loader_of, workers)
    figures = [memory_mb()]
    start = time.perf_counter()
    loader = loader_of(dataset, workers)
    iterator = iter(loader)
    next(iterator)
    seconds = time.perf_counter() - start
    figures.append(memory_mb())
    figures.extend(after_epochs(loader, iterator))
    results.put((seconds, figures))
    if hasattr(loader, "close"):
        loader.close()


def warm(loader_of: MakeLoader, workers: int) -> None:
    """Imports what trainer and loader need, so that it does not count as memory of the dataset."""
    loader = loader_of(Rows(np.ones((8, 10))), 1)
    for _ in loader:
        pass
    if hasattr(loader, "close"):
        loader.close()


def after_epochs(loader: Any, iterator: Iterator[Any]) -> Iterator[float]:
    for epoch in range(EPOCHS):
        for _ in iterator:
            pass
        if epoch in (0, EPOCHS - 1):
            yield memory_mb()
        if epoch < EPOCHS - 1:
            iterator = iter(loader)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gb", type=float, default=2.0, help="size of the array")
    parser.add_argument("--strings", type=int, default=10_000_000, help="length of the list of strings")
    parser.add_argument("--records", type=int, default=300_000, help="length of the list of dicts")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--without", nargs="+", default=[], help="loaders to leave out")
    options = parser.parse_args()

    context = multiprocessing.get_context("spawn")
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}"
    print(f"{platform.machine()}, {os.cpu_count()} cores, {versions}")
    for kind in options.only:
        size = {"array": options.gb, "strings": options.strings, "records": options.records}[kind]
        what = f"array of {size:g} GB" if kind == "array" else f"{size:,} {kind}"
        print(f"\n{f'{what}, {options.workers} workers':44} before  first  1 epoch  3 epochs (MB)     time")
        for make, data, (name, loader_of) in CASES[kind]:
            if name in options.without:
                continue
            results = context.SimpleQueue()
            arguments = (results, make, size, loader_of, options.workers)
            process = context.Process(target=measure, args=arguments)
            process.start()
            process.join()
            if process.exitcode:
                print(f"{data:20} {name:22} failed: see above", flush=True)
                continue
            seconds, figures = results.get()
            line = " ".join(f"{figure:8.0f}" for figure in figures)
            print(f"{data:20} {name:22} {line} {seconds:13.2f} s", flush=True)


if __name__ == "__main__":
    main()
