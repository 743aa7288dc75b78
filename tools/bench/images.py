"""Measures random crops of JPEG images, from shards of tar to batches of 64 in the training process.

    python tools/bench/images.py                  # all, about ten minutes
    python tools/bench/images.py --quick --only ships --workers 2
    python tools/bench/images.py --photographs 41 --dtype float32
    python tools/bench/images.py --json figures.json    # as tools/bench/report.py does

``ships``: each contestant decodes, crops, resizes and flips with what its package ships or its pages
advise: torchvision v2 beside webdataset, torchdata, MosaicML Streaming, litdata and Energon, FFmpeg in SPDL,
Pillow beside grain, DALI on the CPU.
``same``: all use ``mpwds.RandomResizedCrop``, so the rest is compared; bare processes have no transport.
DALI takes no function.

Photographs of 500x375 pixels, of about 107 and 41 kB, become uint8 of [224, 224, 3] or float32 of
[3, 224, 224], normalised. They are made once, and kept in ``mpwds/photographs`` in ``$XDG_CACHE_HOME`` or
``~/.cache``. Torch's operators use one thread in each worker. Ratios and goals are as in
``loader.py``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from loading import contest, decoders, formats, images, jpegs
from loading.contest import Contest

PHOTOGRAPHS = {107: {"quality": 95, "smoothness": 0.15}, 41: {"quality": 80, "smoothness": 0.2}}
SHAPES = {"uint8": (jpegs.SIZE, jpegs.SIZE, 3), "float32": (3, jpegs.SIZE, jpegs.SIZE)}
GOALS = {
    "webdataset + DataLoader": 1.2,
    "grain, mp_prefetch": 1.05,
    "SPDL, SharedMemorySegmentPool": 1.0,
    "bare processes": 0.95,
}
ELSEWHERE = frozenset(
    {
        "mpwds.WebLoader",
        "mpwds.DataLoader, pipeline",
        "mpwds.DataLoader, map-style",
        "webdataset + DataLoader, default collate",
        "webdataset.WebLoader",
        "torch DataLoader, map-style",
    }
)
"""Contestants of ``loader.py`` that are not repeated here."""


def contests(options: argparse.Namespace, folder: Path) -> Iterator[Contest]:
    for kilobytes in options.photographs:
        photograph = partial(jpegs.photograph, width=500, height=375, **PHOTOGRAPHS[kilobytes])
        shards_folder = folder / str(kilobytes)
        shards_folder.mkdir()
        shards = jpegs.cached_shards(shards_folder, 4, 64, photograph)
        formats.in_a_fork(decoders.write_formats, shards)
        for dtype in options.dtype:
            decode = decoders.cropped_uint8 if dtype == "uint8" else decoders.cropped_float32
            for workers in options.workers:
                work = images.Images(shards, decode, None, SHAPES[dtype], dtype, workers)
                name = f"{kilobytes} kB to {dtype}"
                if "ships" in options.only:
                    yield decoders.contest(work, f"{name}, each as it ships")
                if "same" in options.only:
                    same = images.contest(work, GOALS, ELSEWHERE)
                    contestants = [*same.contestants, *decoders.with_the_same_function(work)]
                    yield Contest(f"{name}, the same function", contestants, same.samples, workers)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each contestant; the best counts")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a run, once it is warm")
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--only", nargs="+", choices=["ships", "same"], default=["ships", "same"])
    parser.add_argument("--photographs", nargs="+", type=int, choices=PHOTOGRAPHS, default=list(PHOTOGRAPHS))
    parser.add_argument("--dtype", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--json", type=Path, help="file to write the figures to, of the most workers")
    options = parser.parse_args()
    rounds, seconds = (1, 0.5) if options.quick else (options.rounds, options.seconds)
    # Once here, not in each contestant: a training script has torch before its loader.
    import torch.utils.data  # noqa: F401  # for contestants
    import webdataset  # noqa: F401

    packages = ("torch", "torchvision", "torchdata", "webdataset", "spdl", "grain", "nvidia-dali-cuda120")
    machine = contest.machine(*packages)
    print(f"{machine}\nbest of {rounds} alternating runs of {seconds:g} s")
    samples_per_s = {}
    with tempfile.TemporaryDirectory() as folder:
        for one in contests(options, Path(folder)):
            best = contest.hold(one, rounds, seconds)
            if one.workers == max(options.workers):
                samples_per_s[one.name] = {name: 1 / result.seconds for name, result in best.items()}
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "samples_per_s": samples_per_s}, indent=2))


if __name__ == "__main__":
    main()
