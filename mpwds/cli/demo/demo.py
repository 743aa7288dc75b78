"""``mpwds demo``: trains a small network from tar shards, on its own data or the user's."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mpwds.cli.demo.training import ImageTask, Outcome

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


@dataclass(frozen=True)
class _Arguments:
    data: list[str] | None
    test: list[str] | None
    size: int | None
    epochs: int
    workers: int
    batch_size: int
    cache_dir: Path | None


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
    return _run(_Arguments(data, test, size, epochs, workers, batch_size, cache_dir), lr)


def _run(arguments: _Arguments, lr: float) -> int:
    began_s = time.perf_counter()
    from mpwds.cli.demo.digits import default_cache_dir
    from mpwds.cli.demo.training import train
    from mpwds.cli.outputs import write_png
    from mpwds.viewing.contact_sheet import contact_sheet

    task = _own(arguments) if arguments.data else _digits(arguments)
    # One worker reads a shard, so more workers than shards would have nothing to do.
    workers = min(arguments.workers, task.shards)
    outcome = train(task, epochs=arguments.epochs, workers=workers, lr=lr)
    picture = default_cache_dir().parent / "demo.png"
    labels = [task.names[number] for number in outcome.labels.tolist()]
    title = f"The first {len(labels)} of {task.train_samples:,} training images, as the loader delivered them"
    write_png(picture, contact_sheet((outcome.images, labels), title))
    print(_summary(task, workers, outcome, picture, time.perf_counter() - began_s))
    print(_suggestion(arguments, task, workers, outcome))
    if not arguments.data and outcome.accuracy < _EXPECTED_ACCURACY:
        print(
            f"mpwds demo: {outcome.accuracy:.1%} is below the {_EXPECTED_ACCURACY:.0%} that the demo reaches "
            "with its default settings",
            file=sys.stderr,
        )
        return 1
    return 0


def _digits(arguments: _Arguments) -> ImageTask:
    from mpwds.cli.demo import digits

    directory = (arguments.cache_dir or digits.default_cache_dir()).absolute()
    written = "wrote" if digits.ensure_digits(directory) else "found"
    print(f"{written} {digits.SAMPLES:,} handwritten digits in {directory}", flush=True)
    return digits.digits_task(directory, arguments.batch_size)


def _own(arguments: _Arguments) -> ImageTask:
    from mpwds.cli.demo.own_shards import own_task

    size, batch_size, workers = arguments.size or _DEFAULT_SIZE, arguments.batch_size, arguments.workers
    return own_task(
        arguments.data or (), arguments.test or (), size=size, batch_size=batch_size, workers=workers
    )


def _summary(task: ImageTask, workers: int, outcome: Outcome, picture: Path, total_s: float) -> str:
    stats = outcome.stats
    return f"""
  data       {task.place} ({_count(task.shards, "shard")})
  samples    {task.train_samples:,} to train on, {task.held_out_samples:,} held out, {len(task.names)} classes
  accuracy   {outcome.accuracy:.1%} on the held-out samples
  speed      {stats.samples_per_s:,.0f} samples/s with {_count(workers, "worker")}
  waiting    {stats.waiting_share:.0%} of the time, and {stats.first_batch_s:.1f} s before first batches
  picture    {picture}
  time       {total_s:.1f} s in all
"""


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _suggestion(arguments: _Arguments, task: ImageTask, workers: int, outcome: Outcome) -> str:
    if not arguments.data:
        return "Next, your own image shards: mpwds demo --data 'DIR/{000..009}.tar'"
    if outcome.stats.waiting_share > _MUCH_WAITING and workers < task.shards:
        more = min(task.shards, max(2, 2 * workers))
        return f"Next, let more workers decode: the same command with --workers {more}"
    return f"Next, train longer: the same command with --epochs {2 * arguments.epochs}"
