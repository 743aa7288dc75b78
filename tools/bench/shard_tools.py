"""Measures commands from shards to shards against cp and tar, on the same disk, in turns.

    python tools/bench/shard_tools.py                       # 2 GB of samples of 100 kB, 5 rounds
    python tools/bench/shard_tools.py --quick               # 0.5 GB, 3 rounds
    python tools/bench/shard_tools.py --directory /dev/shm  # another disk, or none

The shards are in the page cache, and stay there. ``tar`` unpacks the shards and packs the files again, which
is how shards are cut without these commands. ``proc`` has written everything to disk when it ends, so that a
run after a crash of the machine can continue: it is compared with cp and sync, the others with cp. Our
commands run inside this process, so the 0.4 s in which Python starts do not count; worker processes of proc
and create do.

``create`` reads the samples as files, two for each. ``cp of files`` copies these, and ``tar of files`` packs
them as ``create`` does: opening files takes longer than copying what is in them.

Each round runs all of them, one after the other; the figures are medians. Goal: at least 0.7 of cp.
``shuffle, on disk`` may hold an eighth of the data, so all samples go through temporary files: its goal is
0.35, since it writes and reads everything twice.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

from mpwds.cli.main import main as mpwds
from mpwds.storage.writing.tar_writer import TarWriter

_SAMPLE_BYTES = 100_000
_SHARDS = 8
_BASE = "cp and sync"


class Contestant(NamedTuple):
    """What is measured: a function of the folder to write to, and the ratio to reach."""

    name: str
    run: Callable[[str], object]
    goal: float | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of re-sharding against cp and tar")
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="0.5 GB, 3 rounds")
    parser.add_argument("--directory", help="where to write; by default the temporary folder")
    arguments = parser.parse_args()
    size, rounds = (0.5, 3) if arguments.quick else (arguments.gigabytes, arguments.rounds)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        shards = write_shards(folder, int(size * 1e9))
        unpack(shards, f"{folder}/files")
        nbytes = sum(map(os.path.getsize, shards))
        print(f"{nbytes / 1e9:.2f} GB in {_SHARDS} shards, samples of 100 kB, in the page cache, {folder}")
        contestants = make_contestants(folder, shards, nbytes)
        times = measure(contestants, folder, rounds)
    base = statistics.median(times[_BASE])
    print(f"{'':<24}{'seconds':>9}{'GB/s':>8}{'of cp':>8}{'of cp and sync':>16}{'goal':>7}")
    for name, _, goal in contestants:
        seconds = statistics.median(times[name])
        ratios = f"{statistics.median(times['cp']) / seconds:>8.2f}{base / seconds:>16.2f}"
        print(f"{name:<24}{seconds:>9.2f}{nbytes / seconds / 1e9:>8.2f}{ratios}{goal or '':>7}")


def write_shards(folder: str, nbytes: int) -> list[str]:
    """Shards of random samples."""
    rng = random.Random(0)
    shards = []
    for shard in range(_SHARDS):
        shards.append(f"{folder}/in-{shard:03}.tar")
        with TarWriter(shards[-1], mtime=0) as sink:
            for number in range(nbytes // _SAMPLE_BYTES // _SHARDS):
                sample = {"jpg": rng.randbytes(_SAMPLE_BYTES), "cls": b"%d" % rng.randrange(1000)}
                sink.write({"__key__": f"{shard:03}{number:06}", **sample})
    return shards


def unpack(shards: list[str], folder: str) -> None:
    """The samples' files, for ``create``."""
    os.mkdir(folder)
    for shard in shards:
        subprocess.run(["tar", "-C", folder, "-xf", shard], check=True)


def make_contestants(folder: str, shards: list[str], nbytes: int) -> list[Contestant]:
    """What is measured, in turn."""
    with open(f"{folder}/pipeline.py", "w") as file:
        file.write("stages = []\n")

    def cp(out: str) -> None:
        subprocess.run(["cp", *shards, out], check=True)

    def cp_files(out: str) -> None:
        subprocess.run(["cp", "-r", f"{folder}/files", out], check=True)

    def tar_files(out: str) -> None:
        subprocess.run(["tar", "-C", folder, "-cf", f"{out}/x.tar", "--sort=name", "files"], check=True)

    def cp_and_sync(out: str) -> None:
        cp(out)
        subprocess.run(["sync", *(os.path.join(out, name) for name in os.listdir(out)), out], check=True)

    def tar(out: str) -> None:
        os.mkdir(f"{out}/files")
        for shard in shards:
            subprocess.run(["tar", "-C", f"{out}/files", "-xf", shard], check=True)
        subprocess.run(["tar", "-C", out, "-cf", f"{out}/all.tar", "--sort=name", "files"], check=True)

    def ours(*words: str) -> Callable[[str], None]:
        def run(out: str) -> None:
            with contextlib.redirect_stdout(io.StringIO()):
                status = mpwds([word.replace("OUT", out) for word in words])
            if status:
                sys.exit(status)

        return run

    third = str(nbytes // 3)
    return [
        Contestant("cp", cp),
        Contestant(_BASE, cp_and_sync),
        Contestant("tar x, tar c", tar),
        Contestant("cp of files", cp_files),
        Contestant("tar of files", tar_files),
        Contestant("split", ours("split", *shards, "OUT/x-%03d.tar", "--maxsize", third), 0.7),
        Contestant("merge", ours("merge", *shards, "OUT/x.tar"), 0.7),
        Contestant(
            "shuffle, in memory",
            ours("shuffle", *shards, "OUT/x-%03d.tar", "--maxsize", third, "--memory", str(2 * nbytes)),
            0.7,
        ),
        Contestant(
            "shuffle, on disk",
            ours("shuffle", *shards, "OUT/x-%03d.tar", "--maxsize", third, "--memory", str(nbytes // 8)),
            0.35,
        ),
        Contestant("create, of files, -j 2", ours("create", f"{folder}/files", "OUT/x-%03d.tar", "-j", "2")),
        Contestant(
            "proc, no stages, -j 2",
            ours("proc", f"{folder}/pipeline.py:stages", *shards, "OUT/x-%03d.tar", "-j", "2"),
            0.7,
        ),
    ]


def measure(contestants: list[Contestant], folder: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of each contestant in each round."""
    times: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for number in range(rounds):
        # In another order each time: whoever comes after tar waits for what its many files leave to do.
        for name, run, _ in random.Random(number).sample(contestants, len(contestants)):
            out = f"{folder}/out"
            os.mkdir(out)
            began = time.perf_counter()
            run(out)
            times[name].append(time.perf_counter() - began)
            shutil.rmtree(out)
            os.sync()
    return times


if __name__ == "__main__":
    main()
