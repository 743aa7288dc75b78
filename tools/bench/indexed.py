"""Measures indexed access to tar shards beside wids, from the same local shards.

    python tools/bench/indexed.py                   # all, about three minutes
    python tools/bench/indexed.py --quick           # fewer samples
    python tools/bench/indexed.py --directory /data # where to put the shards, a gigabyte

``dataset[i]`` without decoding, at random places: of shards that are all open (8, and wids keeps 10 open),
and of more shards than that (40), where wids scans a shard each time it opens one. ``and read``: the streams
of the sample are read, too; those of mpwds copy large data only then, wids copies all at once. ``open``: a
dataset from a description of 1,000 shards, without the 0.25 ms in which mpwds joins URLs with their base
when the first sample, or the list of shards, is asked for. ``DataLoader``: each with its own ChunkedSampler
and two workers, wids in torch's loader and ours in ``mpwds.DataLoader``; samples become rows of a batch.
Memory: what the process that reads has written and shares with no other, above what it had after its
imports; with a loader, that of the larger worker. Both map shards, whose pages belong to the page cache and
are not counted.

mpwds keeps the offsets of samples beside the shards. They are there when it is measured; ``first use`` is the
time to find those of a shard, which one process does once.

wids and mpwds take turns, each measurement in a process of its own; figures are medians of the rounds. Times
are of the wall clock for DataLoader, and otherwise of the processor, as the shards are in the page cache.
wids comes from the folder for packages to compare with, ``peers`` in the virtual environment.

The last table has ``dataset[i]`` of other packages, too: each reads all fields of the same samples, at random
places in 8 shards (or files) of its own format. Here the time of ours includes reading the fields.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from loading import formats
from loading.contest import is_installed

import mpwds
from mpwds.storage.indexed.describing import write_description
from mpwds.storage.indexed.tar_shards import TarShards
from mpwds.storage.writing.tar_writer import TarWriter

_OPENINGS = 10
SHARDS = 8


@dataclass(frozen=True)
class Case:
    """What one process measures: ``reads`` samples of ``shards`` shards."""

    what: str
    shards: str
    reads: int
    loops: int = 1


def main() -> None:
    parser = argparse.ArgumentParser(description="Indexed access to tar shards, beside wids")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--directory", help="folder for the shards; by default a temporary one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        package, case = arguments.child
        if package == "write":
            place, size, samples = case.split()
            write_formats(Path(place), int(size), int(samples))
            return
        print(json.dumps(measure(package, Case(**json.loads(case)))))
        return
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        compare(folder, 1 if arguments.quick else 5, arguments.rounds)


def compare(folder: str, scale: int, rounds: int) -> None:
    small = make(folder, "small", shards=40, samples=400 * scale, size=300)
    large = make(folder, "large", shards=40, samples=10 * scale, size=100_000)
    few_small, few_large = part(small, 8), part(large, 8)
    thousand = describe_thousand(folder, small)
    cases = {
        "dataset[i], 300 B, 8 shards": (Case("read", few_small, 4000 * scale), 5.0),
        "dataset[i], 300 B, 40 shards": (Case("read", small, 200 * scale), 5.0),
        "dataset[i], 100 kB, 8 shards": (Case("read", few_large, 1000 * scale), 3.0),
        "and read, 300 B, 8 shards": (Case("use", few_small, 4000 * scale), None),
        "and read, 100 kB, 8 shards": (Case("use", few_large, 1000 * scale), None),
        "dataset[i], 100 kB, 40 shards": (Case("read", large, 200 * scale), 3.0),
        "open 1,000 shards": (Case("open", thousand, 1), 10.0),
        "DataLoader, 300 B, 40 shards": (Case("load", small, 0), 3.0),
        "DataLoader, 100 kB, 40 shards": (Case("load", large, 0), 3.0),
    }
    for description in (small, large):
        print(
            f"first use of a shard of {Path(description).stem} samples: {find_all(description) * 1e3:.1f} ms"
        )
    print(f"{'':<32}{'wids':>14}{'mpwds':>14}{'ratio':>8}{'goal':>6}   memory: wids, mpwds")
    for name, (case, goal) in cases.items():
        figures: dict[str, list[tuple[float, float]]] = {"wids": [], "mpwds": []}
        for _ in range(rounds):
            for package, measured in figures.items():
                measured.append(run(package, case))
        (theirs, their_memory), (ours, our_memory) = (medians(measured) for measured in figures.values())
        print(
            f"{name:<32}{theirs * 1e6:>11,.1f} us{ours * 1e6:>11,.1f} us{theirs / ours:>8.1f}{goal or '':>6}"
            f"   {their_memory:>6.1f} MB {our_memory:>6.1f} MB",
            flush=True,
        )
    compare_formats(folder, scale, rounds)


def compare_formats(folder: str, scale: int, rounds: int) -> None:
    print(f"\n{'dataset[i], all fields':<32}{'300 B':>14}{'':8}{'100 kB':>14}")
    cases = {}
    for size, samples in ((300, 400 * scale), (100_000, 10 * scale)):
        place = Path(folder, f"formats-{size}")
        command = [sys.executable, __file__, "--child", "write", f"{place} {size} {samples}"]
        subprocess.run(command, check=True)
        cases[size] = place, 4000 * scale if size == 300 else 1000 * scale
    for name, (package, _) in OPENERS.items():
        if not is_installed(package):
            print(f"{name:<32}left out: {package} is not installed")
            continue
        times = []
        for place, reads in cases.values():
            case = Case("format", str(place), reads)
            times.append(statistics.median(run(name, case)[0] for _ in range(rounds)))
        print(f"{name:<32}{times[0] * 1e6:>11,.1f} us{'':8}{times[1] * 1e6:>11,.1f} us", flush=True)


def write_formats(place: Path, size: int, samples: int) -> None:
    """Writes the same samples in all formats, 8 shards each."""
    place.mkdir()
    made = [{"bin": os.urandom(size), "cls": number % 10} for number in range(samples)]
    formats.write_tar(place / "tar", made, SHARDS)
    formats.write_mds(place / "mds", {"bin": "bytes", "cls": "int"}, made, SHARDS)
    if is_installed("litdata"):
        formats.write_litdata(place / "litdata", made, SHARDS)
    if is_installed("datasets"):
        formats.write_arrow(place / "arrow", made * SHARDS)
    if is_installed("array_record"):
        formats.write_array_record(place / "x.arrayrecord", made * SHARDS)


def _wids(place: str) -> Any:
    wids = formats.import_wids()
    urls = [f"{place}/tar/x-{shard:04}.tar" for shard in range(SHARDS)]
    shards = [{"url": url, "nsamples": len(mpwds.IndexedDataset(url))} for url in urls]
    return wids.ShardListDataset(shards, transformations=[], localname=str)


def _litdata(place: str) -> Any:
    import litdata

    return litdata.StreamingDataset(f"{place}/litdata")


def _arrow(place: str) -> Any:
    import datasets

    return datasets.load_from_disk(f"{place}/arrow")


def _grain(place: str) -> Any:
    return formats.import_grain().sources.ArrayRecordDataSource([f"{place}/x.arrayrecord"])


def _tar(place: str) -> Any:
    return mpwds.IndexedDataset(f"{place}/tar/x-{{0000..{SHARDS - 1:04}}}.tar")


def _mds(place: str) -> Any:
    return mpwds.MDSDataset(f"{place}/mds")


def _streaming(place: str) -> Any:
    return formats.import_streaming().LocalDataset(f"{place}/mds")


OPENERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "mpwds, tar": ("mpwds", _tar),
    "mpwds, MDS": ("mpwds", _mds),
    "wids, tar": ("torch", _wids),
    "MosaicML Streaming, MDS": ("torch", _streaming),
    "litdata": ("litdata", _litdata),
    "datasets, Arrow": ("datasets", _arrow),
    "grain, ArrayRecord": ("array_record", _grain),
}
"""Datasets by name: the package that each needs, and a function of the folder."""


def medians(figures: Sequence[tuple[float, float]]) -> tuple[float, float]:
    times, memories = zip(*figures, strict=True)
    return statistics.median(times), statistics.median(memories)


def run(package: str, case: Case) -> tuple[float, float]:
    """Seconds per sample (or per dataset opened), and megabytes, of a process of its own."""
    command = [sys.executable, __file__, "--child", package, json.dumps(vars(case))]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    seconds, megabytes = json.loads(done.stdout.splitlines()[-1])  # wids prints warnings before it
    return seconds, megabytes


def measure(package: str, case: Case) -> tuple[float, float]:
    import torch.utils.data

    if case.what == "format":
        return measure_format(OPENERS[package][1](case.shards), case.reads), 0.0
    if package == "wids":
        wids: Any = formats.import_wids()
    else:
        from mpwds import wids
    before = memory()
    shards: Any = (
        case.shards if case.what == "open" else json.loads(Path(case.shards).read_text())["shardlist"]
    )
    options: dict[str, Any] = {"transformations": [], "localname": str}
    dataset = wids.ShardListDataset(shards, **options)
    if case.what == "open":
        start = time.process_time()
        for _ in range(_OPENINGS):
            dataset = wids.ShardListDataset(shards, **options)
        return (time.process_time() - start) / _OPENINGS, memory() - before
    if case.what in ("read", "use"):
        rng = random.Random(1)
        numbers = [rng.randrange(len(dataset)) for _ in range(case.reads)]
        for number in numbers[: case.reads // 4]:
            dataset[number]
        start = time.process_time()
        for number in numbers:
            sample = dataset[number]
            if case.what == "use":
                for field in (".bin", ".cls"):
                    sample[field].read()
        return (time.process_time() - start) / len(numbers), memory() - before
    sampler = wids.ChunkedSampler(dataset, chunksize=500, shufflefirst=True)
    make_loader: Any = torch.utils.data.DataLoader if package == "wids" else mpwds.DataLoader
    loader = make_loader(
        dataset,
        batch_size=64,
        sampler=sampler,
        num_workers=2,
        collate_fn=rows,
        multiprocessing_context="fork",
        persistent_workers=True,
    )
    for _ in range(2):  # in the first, workers start
        start = time.perf_counter()
        count = sum(len(classes) for _, classes in loader)
    seconds = (time.perf_counter() - start) / count
    return seconds, max(map(memory, psutil.Process().children(recursive=True)))


def measure_format(dataset: Any, reads: int) -> float:
    """Processor seconds for a sample with all of its fields."""
    rng = random.Random(1)
    numbers = [rng.randrange(len(dataset)) for _ in range(reads)]
    for number in numbers[: reads // 4]:
        dataset[number]
    start = time.process_time()
    for number in numbers:
        sample = dataset[number]
        for value in sample.values() if isinstance(sample, dict) else ():
            if hasattr(value, "read"):
                value.read()
    return (time.process_time() - start) / reads


def rows(samples: list[dict[str, Any]]) -> tuple[Any, Any]:
    """A batch: the bytes as rows of a tensor, and the classes."""
    import numpy as np
    import torch

    data = np.stack([np.frombuffer(sample[".bin"].read(), np.uint8) for sample in samples])
    return torch.from_numpy(data), torch.tensor([int(sample[".cls"].read()) for sample in samples])


def find_all(description: str) -> float:
    """Finds the offsets of all samples; returns the seconds that a shard takes."""
    urls = [shard["url"] for shard in json.loads(Path(description).read_text())["shardlist"]]
    start = time.perf_counter()
    TarShards(urls).lengths  # noqa: B018
    return (time.perf_counter() - start) / len(urls)


def memory(process: psutil.Process | None = None) -> float:
    """The megabytes that a process has written, and shares with no other; by default, this one."""
    pid = (process or psutil.Process()).pid
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")) / 1000


def make(folder: str, name: str, shards: int, samples: int, size: int) -> str:
    """Writes shards of random bytes and a class, and returns the path of their description."""
    listed = []
    for shard in range(shards):
        path = os.path.join(folder, f"{name}-{shard:03d}.tar")
        with TarWriter(path) as sink:
            for n in range(samples):
                sink.write({"__key__": f"{shard:03d}{n:06d}", "bin": os.urandom(size), "cls": n % 10})
        listed.append({"url": path, "nsamples": samples})
    description = os.path.join(folder, f"{name}.json")
    write_description({"wids_version": 1, "shardlist": listed}, description)
    return description


def part(description: str, shards: int) -> str:
    """A description of the first shards of another."""
    contents = json.loads(Path(description).read_text())
    path = description.replace(".json", f"-{shards}.json")
    write_description({**contents, "shardlist": contents["shardlist"][:shards]}, path)
    return path


def describe_thousand(folder: str, description: str) -> str:
    """A description of 1,000 shards by names relative to it."""
    listed = json.loads(Path(description).read_text())["shardlist"]
    names = [{**listed[n % len(listed)], "url": f"shards/x-{n:06d}.tar", "filesize": 1} for n in range(1000)]
    path = os.path.join(folder, "thousand.json")
    write_description({"wids_version": 1, "name": "thousand", "shardlist": names}, path)
    return path


if __name__ == "__main__":
    main()
