"""``mpwds demo``: trains a small network from tar shards, on its own data or the user's."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from mpwds.cli.shards import expanded
from mpwds.viewing.wording import counted

_EXPECTED_ACCURACY = 0.95
_MUCH_WAITING = 0.2
_DEFAULT_SIZE = 64
_SMALLEST_SIZE, _LARGEST_SIZE = 8, 1024

Size = Annotated[
    int | None,
    typer.Option(
        min=_SMALLEST_SIZE,
        max=_LARGEST_SIZE,
        metavar="PIXELS",
        help=f"Height and width to bring images to, {_DEFAULT_SIZE} unless given.",
    ),
]


def demo(
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Shards to train on: 'DIR/{000..009}.tar', or several."),
    ] = None,
    test: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Shards with the held-out samples.")
    ] = None,
    size: Size = None,
    epochs: Annotated[int, typer.Option(min=1, metavar="N")] = 12,
    workers: Annotated[int, typer.Option(min=0, metavar="N", help="Worker processes.")] = 2,
    batch_size: Annotated[int, typer.Option(min=1, metavar="N")] = 64,
    lr: Annotated[float, typer.Option(min=0, metavar="RATE", help="Learning rate.")] = 3e-3,
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for the digits: mpwds/digits in $XDG_CACHE_HOME or ~/.cache unless given.",
        ),
    ] = None,
    remote: Annotated[
        bool, typer.Option("--remote", help="Train from two servers, of which one is killed half way.")
    ] = False,
) -> int:
    """Train a small network from tar shards, on handwritten digits or your own images.

    Writes scikit-learn's 1,797 handwritten digits to 16 tar shards in a cache folder, then trains a
    small network from them through MultiLoader, and tests it on the digits of 4 shards that were held out.

    With --data it trains on your own shards: samples with an image (jpg, png, webp, ...) and a label, a whole
    number in cls. About one sample in ten is held out, unless --test says where the held-out ones are.
    """
    if math.isnan(lr):
        raise typer.BadParameter("--lr: expected a number from 0, got nan")
    if not data and (test or size is not None):
        raise typer.BadParameter("--test and --size are for your own shards: name these with --data")
    if data and cache_dir is not None:
        raise typer.BadParameter("--cache-dir is for the digits, which --data replaces")
    if remote:
        if data or cache_dir is not None:
            raise typer.BadParameter("--remote serves the digits in their usual folder")
        from mpwds.cli.demo.remote import run

        return run(epochs, lr)
    return _train(data or (), test or (), size, epochs, workers, batch_size, lr, cache_dir)


def _train(
    data: Sequence[str],
    test: Sequence[str],
    size: int | None,
    epochs: int,
    workers: int,
    batch_size: int,
    lr: float,
    cache_dir: Path | None,
) -> int:
    began_s = time.perf_counter()
    from mpwds.cli.demo import training
    from mpwds.cli.outputs import write_png
    from mpwds.viewing.contact_sheet import contact_sheet

    place = " ".join((*data, *test))
    if data:
        options = {"size": size or _DEFAULT_SIZE, "batch_size": batch_size, "workers": workers}
        task = training.image_task(expanded(data), expanded(test), **options)
    else:
        directory = (cache_dir or training.default_cache_dir()).absolute()
        place = str(directory)
        written = "wrote" if training.ensure_digits(directory) else "found"
        print(f"{written} {training.SAMPLES:,} handwritten digits in {directory}", flush=True)
        task = training.digits_task(directory, batch_size)
    # One worker reads a shard, so more workers than shards would have nothing to do.
    workers = min(workers, task.shards)
    outcome = training.train(task, epochs=epochs, workers=workers, lr=lr)
    stats = outcome.stats
    picture = training.default_cache_dir().parent / "demo.png"
    labels = [task.names[number] for number in outcome.labels.tolist()]
    title = f"The first {len(labels)} of {task.train_samples:,} training images, as the loader delivered them"
    write_png(picture, contact_sheet((outcome.images, labels), title))
    print(f"""
  data       {place} ({counted(task.shards, "shard")})
  samples    {task.train_samples:,} to train on, {task.held_out_samples:,} held out, {len(task.names)} classes
  accuracy   {outcome.accuracy:.1%} on the held-out samples
  speed      {stats.samples_per_s:,.0f} samples/s with {counted(workers, "worker")}
  waiting    {stats.waiting_share:.0%} of the time, and {stats.first_batch_s:.1f} s before first batches
  picture    {picture}
  time       {time.perf_counter() - began_s:.1f} s in all
""")
    if not data:
        print("Next, your own image shards: mpwds demo --data 'DIR/{000..009}.tar'")
    elif stats.waiting_share > _MUCH_WAITING and workers < task.shards:
        more = min(task.shards, max(2, 2 * workers))
        print(f"Next, let more workers decode: the same command with --workers {more}")
    else:
        print(f"Next, train longer: the same command with --epochs {2 * epochs}")
    if not data and outcome.accuracy < _EXPECTED_ACCURACY:
        print(
            f"mpwds demo: {outcome.accuracy:.1%} is below the {_EXPECTED_ACCURACY:.0%} that the demo reaches "
            "with its default settings",
            file=sys.stderr,
        )
        return 1
    return 0
