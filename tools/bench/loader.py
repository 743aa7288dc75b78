"""Measures loaders beside their peers, from what is stored to the training loop.

    python tools/bench/loader.py                  # all, eleven minutes
    python tools/bench/loader.py --quick          # about a minute, less exact
    python tools/bench/loader.py --only uint8 --rounds 5
    python tools/bench/loader.py --json figures.json    # as tools/bench/report.py does

Contestants run in turn, each in a fresh process: the training process, which looks at one value of each batch
and drops it. A figure is the best of the rounds. What is counted begins when workers run and their
buffers have been used once; ``first batch`` is the time from nothing to the first batch, workers started.
``CPU/sample`` is the processor time of all processes, which other programs on the machine disturb less
than they do the rate; ``trainer/batch`` is that of the training process alone: what a training step loses.
Ratios are of the first contestant to each, by time and by processor time; a goal is for these.

``images``: JPEG to float32, and ``uint8`` to uint8, 224x224, batches of 64, one decode function for all
(Pillow), and our reader for those who have none. SPDL and the bare processes, which have no transport at
all, make their batches in the same memory again and again; grain and the map-style datasets have the images
in memory. ``stored``: small samples, each from the format of its own package, in the order in which they are
stored, and shuffled (globally, or by shards and a buffer of 1,000 samples where a package has no other way,
as webdataset and Energon). ``samples``: map-style datasets that do nothing, so only fetching, collating and
transport are measured. ``ready``: transport alone, of one array that is changed a little each time and read
whole by the training process; a copy without workers shows what the machine could do at best.
``slow``: one worker is 20 times slower than the other three.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from loading import contest, formats, images, jpegs, ready_batches, samples, slow_worker, stored
from loading.contest import Contest

GOALS = {"webdataset + DataLoader": 1.5, "webdataset + DataLoader, default collate": 1.35}
GOALS_UINT8 = {"webdataset + DataLoader": 1.2}
GOALS_OF_BOTH = {"SPDL, SharedMemorySegmentPool": 1.0, "bare processes": 0.97}
# They differ from others by nothing that depends on the dtype.
FLOAT32_ONLY = frozenset(
    {"mpwds.WebLoader", "mpwds.DataLoader, map-style", "webdataset.WebLoader", "torch DataLoader, map-style"}
)

GROUPS = ["images", "uint8", "stored", "samples", "ready", "slow"]


def contests(groups: list[str], folder: Path) -> Iterator[Contest]:
    if "images" in groups or "uint8" in groups:
        shards = jpegs.write_shards(folder, shards=4, samples=64)
        if "images" in groups:
            yield images.contest(images.float32(shards), GOALS | GOALS_OF_BOTH)
        if "uint8" in groups:
            yield images.contest(images.uint8(shards), GOALS_UINT8 | GOALS_OF_BOTH, FLOAT32_ONLY)
    if "stored" in groups:
        formats.in_a_fork(stored.write, folder / "stored")
        yield stored.contest(folder / "stored", shuffled=False)
        yield stored.contest(folder / "stored", shuffled=True)
    if "samples" in groups:
        yield from samples.contests()
    if "ready" in groups:
        yield from map(ready_batches.contest, ready_batches.SHAPES)
    if "slow" in groups:
        yield slow_worker.contest()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each contestant; the best counts")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a run, once it is warm")
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS)
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    options = parser.parse_args()
    rounds, seconds = (1, 0.3) if options.quick else (options.rounds, options.seconds)
    # Once here, not in each contestant: a training script has torch before its loader.
    import torch.utils.data  # noqa: F401  # for contestants
    import webdataset  # noqa: F401

    packages = ("torch", "webdataset", "mosaicml-streaming", "litdata", "megatron-energon", "spdl", "grain")
    machine = contest.machine(*packages, "tensorcom")
    print(f"{machine}\nbest of {rounds} alternating runs of {seconds:g} s")
    samples_per_s = {}
    with tempfile.TemporaryDirectory() as folder:
        for one in contests(options.only, Path(folder)):
            best = contest.hold(one, rounds, seconds)
            samples_per_s[one.name] = {name: 1 / result.seconds for name, result in best.items()}
    if options.json:
        figures = {"machine": machine, "samples_per_s": samples_per_s}
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
