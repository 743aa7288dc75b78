"""Measures what it costs to open a description of a billion samples: as JSON, and in binary form.

    python tools/bench/descriptions.py                                # prints the table, half a minute
    python tools/bench/descriptions.py --shards 10000 --offsets       # with the offsets of samples

No shard exists, and none is read. Each row is measured in processes of its own:

- ``file``: the description's megabytes;
- ``open``: seconds that ``IndexedDataset(description, "global")`` takes, the best of three;
- ``memory``: megabytes that the process then holds and shares with no other. Mapped pages are not counted;
- ``sent``: bytes of the dataset, pickled for a worker;
- ``worker``: megabytes that a worker holds when it has found its first sample.
"""

from __future__ import annotations

import argparse
import base64
import os
import pickle
import subprocess
import sys
import tempfile
import time

import psutil

import mpwds
from mpwds.pipeline.context import Context
from mpwds.storage.indexed.describing import write_description

ROUNDS = 3
OFFSET_BYTES = 2  # of a sample


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=10_000, help="in each shard")
    parser.add_argument("--offsets", action="store_true", help="describe where samples begin, too")
    parser.add_argument("--open", metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.open:
        print_opening(args.open)
    elif args.work:
        print_work()
    else:
        print_table(args.shards, args.samples, args.offsets)


def print_table(shards: int, samples: int, offsets: bool) -> None:
    more = {"offsets": base64.b64encode(os.urandom(OFFSET_BYTES * samples)).decode()} if offsets else {}
    listed = [
        {"url": f"train-{n:06}.tar", "md5sum": f"{n:032x}", "nsamples": samples, "filesize": 10**9, **more}
        for n in range(shards)
    ]
    print(f"{shards * samples:,} samples in {shards:,} shards\n")
    print("| form | file | open | memory | sent | worker |")
    print("| --- | --- | --- | --- | --- | --- |")
    for form in ("json", "shardindex"):
        with tempfile.TemporaryDirectory() as folder:
            file = f"{folder}/train.{form}"
            write_description({"wids_version": 1, "shardlist": listed}, file)
            columns = [f"{os.path.getsize(file) / 1e6:,.1f}"]
            runs = [run("--open", file).decode().split() for _ in range(ROUNDS)]
            columns += min(runs, key=lambda columns: float(columns[0]))
            print(f"| {form} | {' | '.join(columns)} |", flush=True)


def run(*arguments: str, given: bytes | None = None) -> bytes:
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, input=given, check=True, capture_output=True).stdout


def print_opening(file: str) -> None:
    mpwds.IndexedDataset([1], "global")[0]
    before, start = own_mb(), time.perf_counter()
    dataset = mpwds.IndexedDataset(file, "global")
    len(dataset)
    opened, memory = time.perf_counter() - start, own_mb() - before
    sent = pickle.dumps(dataset)
    work = run("--work", given=sent).decode().strip()
    print(f"{opened:.4f} {memory:.1f} {len(sent):,} {work}")


def print_work() -> None:
    sent = sys.stdin.buffer.read()
    mpwds.IndexedDataset([1], "global")[0]
    before = own_mb()
    source = pickle.loads(sent).source
    context = Context(worker=1, workers=8)
    next(source.read_in(context, source.places(context)))
    print(f"{own_mb() - before:.1f}")


def own_mb() -> float:
    memory = psutil.Process().memory_full_info()
    return float(memory.rss - memory.shared) / 1e6


if __name__ == "__main__":
    main()
