"""Measures what a pipeline costs per sample, beside webdataset: reading and grouping, and each stage behind.

    python tools/bench/pipeline.py            # all, about four minutes
    python tools/bench/pipeline.py --quick    # half a minute, less exact
    python tools/bench/pipeline.py --only read --rounds 9

One process, no workers. webdataset and mpwds run in turn on the same shards, in the page cache; a figure is
the best of the rounds, in microseconds per sample. Shards are written by ``webdataset.TarWriter`` as it does
by default, with a pax header before each member; ``plain`` ones are what ``mpwds.TarWriter`` writes. The web
server runs in another process on this machine; pipes are ``pipe:cat``. Ratios are webdataset's time to ours.

What a stage costs is the difference that it makes at the end of the pipeline before it.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import mmap
import multiprocessing
import os
import platform
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zlib import adler32

import webdataset

import mpwds
from mpwds.pipeline.sources.samples import read_samples

Run = Callable[[], Iterable[Any]]


@dataclass(frozen=True)
class Kind:
    """A kind of shard: its samples' fields, as makers from a sample's number."""

    name: str
    count: int
    fields: dict[str, Callable[[int], bytes]]


def noise(number: int, size: int) -> bytes:
    return random.Random(number).randbytes(size + number % 200)


IMAGES = Kind(
    "100 kB images, cls", 3000, {"jpg": partial(noise, size=100_000), "cls": lambda n: b"%d" % (n % 10)}
)
SMALL = Kind("300 B", 10_000, {"bin": partial(noise, size=300)})
PAIRS = Kind("300 B, cls", 10_000, {"bin": partial(noise, size=300), "cls": lambda n: b"%d" % (n % 10)})
TEXTS = Kind(
    "text, cls, json",
    10_000,
    {
        "txt": lambda n: f"a caption of sample {n}, ".encode() * 4,
        "cls": lambda n: b"%d" % (n % 1000),
        "json": lambda n: json.dumps({"width": n, "height": n, "source": "web"}).encode(),
    },
)


def shard(folder: Path, kind: Kind, writer: Any, scale: float) -> str:
    """Writes a shard of a kind; it lies in the page cache as it does after an epoch, read from the disk.

    What was written in small pieces lies there in small pieces, too, which cost twice as much to read.
    """
    path = folder / f"{'-'.join(kind.fields)}-{kind.count}-{writer.__module__.partition('.')[0]}.tar"
    if not path.exists():
        with writer(str(path), encoder=False) as sink:
            for number in range(max(200, int(kind.count * scale))):
                fields = {field: make(number) for field, make in kind.fields.items()}
                sink.write({"__key__": f"train/{number:08d}", **fields})
        with open(path, "r+b") as written:
            os.fsync(written.fileno())
            os.posix_fadvise(written.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while written.read(1 << 20):
                pass
    return str(path)


def seconds_per_element(run: Run) -> float:
    start = time.perf_counter()
    count = sum(1 for _ in run())
    return (time.perf_counter() - start) / count


def compare(theirs: Run, ours: Run, rounds: int) -> tuple[float, float]:
    """Best times of both in microseconds per element, run in turn."""
    return best_of([(theirs, ours)], rounds)[0]


def best_of(pairs: list[tuple[Run, Run]], rounds: int) -> list[tuple[float, float]]:
    """Best times of the runs of all pairs, which are run in turn."""
    best = [[float("inf")] * 2 for _ in pairs]
    for _ in range(rounds):
        for times, pair in zip(best, pairs, strict=True):
            for place, run in enumerate(pair):
                times[place] = min(times[place], 1e6 * seconds_per_element(run))
    return [(theirs, ours) for theirs, ours in best]


def their_samples(url: str) -> Iterator[Any]:
    return iter(webdataset.tariterators.tarfile_samples(iter([{"url": url}])))


def show(name: str, theirs: float, ours: float, goal: float | None = None) -> None:
    rate = f"{1e6 / ours:11,.0f}/s" if ours > 0 else " " * 13
    ratio = f"{theirs / ours:7.1f}" if ours > 0 else " " * 7
    print(f"{name:44} {theirs:10.2f} {ours:8.2f} {ratio} {goal or '':>5} {rate}", flush=True)


def title(name: str) -> None:
    print(f"\n{name:44} webdataset    mpwds   ratio  goal        mpwds\n{'':44} {'us':>10} {'us':>8}")


def measure_reading(folder: Path, rounds: int, scale: float) -> None:
    title("read and group, per sample")
    with served(folder) as address:
        for kind, local_goal, stream_goal in ((IMAGES, 8, 6), (SMALL, 15, 10), (PAIRS, 15, 10)):
            path = shard(folder, kind, webdataset.TarWriter, scale)
            for name, url, goal in (
                ("file", path, local_goal),
                ("pipe", f"pipe:cat {path}", stream_goal),
                ("http", f"{address}/{Path(path).name}", stream_goal),
            ):
                times = compare(partial(their_samples, url), partial(read_samples, url), rounds)
                show(f"{kind.name}: {name}", *times, goal)
            path = shard(folder, kind, mpwds.TarWriter, scale)
            show(
                f"{kind.name}: plain file",
                *compare(partial(their_samples, path), partial(read_samples, path), rounds),
            )


def measure_stages(folder: Path, rounds: int, scale: float) -> None:
    """The pipeline grows by one stage at a time; a batch counts as its samples."""
    for kind, specs in ((TEXTS, ("txt", "cls", "json")), (PAIRS, ("bin", "cls"))):
        path = shard(folder, kind, webdataset.TarWriter, scale)
        stages: list[tuple[str, Callable[[Any], Any]]] = [
            ("WebDataset(...)", lambda dataset: dataset),
            (".shuffle(1000)", lambda dataset: dataset.shuffle(1000)),
            (".decode()", lambda dataset: dataset.decode()),
            (f".to_tuple{specs}", lambda dataset, specs=specs: dataset.to_tuple(*specs)),
            (".batched(64)", lambda dataset: dataset.batched(64)),
        ]
        title(f"stages, {kind.name}: what each adds")
        pipelines = [stages[: last + 1] for last in range(len(stages))] + [stages[:1] + stages[2:]]
        pairs = [
            (
                partial(run_stages, their_dataset, path, some),
                partial(run_stages, mpwds.WebDataset, path, some),
            )
            for some in pipelines
        ]
        *times, without_shuffle = best_of(pairs, rounds)
        before = (0.0, 0.0)
        for (name, _), after in zip(stages, times, strict=True):
            show(name, after[0] - before[0], after[1] - before[1])
            before = after
        show("all of it", *before)
        show("without shuffle", *without_shuffle, 6 if kind is TEXTS else None)


def their_dataset(path: str) -> Any:
    return webdataset.WebDataset(path, shardshuffle=False)


def run_stages(
    make: Callable[[str], Any], path: str, stages: list[tuple[str, Callable[[Any], Any]]]
) -> Iterator[None]:
    dataset = make(path)
    for _, add in stages:
        dataset = add(dataset)
    batched = stages[-1][0].startswith(".batched")
    for element in dataset:
        yield from [None] * (len(element[0]) if batched else 1)


def measure_copies(folder: Path, rounds: int, scale: float) -> None:
    """Why files are read and not mapped: 100 kB at a time, with and without a look at the bytes."""
    path = shard(folder, IMAGES, webdataset.TarWriter, scale)
    size, step = os.path.getsize(path), 100_000
    with open(path, "rb") as file:

        def read() -> Iterator[bytes]:
            return (os.pread(file.fileno(), step, at) for at in range(0, size, step))

        def mapped() -> Iterator[memoryview]:
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            return (view[at : at + step] for at in range(0, size, step))

        print(f"\n{'100 kB pieces of a file, us each':44}       read   mapped")
        for name, run in (
            ("handed out", lambda pieces: pieces()),
            ("all bytes used once (adler32)", lambda pieces: map(adler32, pieces())),
        ):
            times = compare(partial(run, read), partial(run, mapped), rounds)
            print(f"{name:44} {times[0]:10.2f} {times[1]:8.2f}")


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a web server for a folder, in another process."""
    context = multiprocessing.get_context("spawn")
    port = context.SimpleQueue()
    server = context.Process(target=serve, args=(folder, port), daemon=True)
    server.start()
    try:
        yield f"http://127.0.0.1:{port.get()}"
    finally:
        server.terminate()
        server.join()


def serve(folder: Path, port: Any) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            with open(folder / Path(self.path).name, "rb") as file, contextlib.suppress(ConnectionError):
                self.send_response(200)
                self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
                self.send_header("ETag", f'"{self.path}"')
                self.end_headers()
                self.connection.sendfile(file)

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port.put(server.server_port)
    server.serve_forever()


MEASUREMENTS = {"read": measure_reading, "stages": measure_stages, "copies": measure_copies}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="runs of each contestant; the best counts")
    parser.add_argument("--quick", action="store_true", help="smaller shards and two rounds")
    parser.add_argument("--only", nargs="+", choices=list(MEASUREMENTS), default=list(MEASUREMENTS))
    options = parser.parse_args()
    rounds, scale = (2, 0.2) if options.quick else (options.rounds, 1.0)
    warnings.simplefilter("ignore")
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"webdataset {webdataset.__version__}; best of {rounds} alternating runs"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            MEASUREMENTS[name](Path(folder), rounds, scale)


if __name__ == "__main__":
    main()
