"""``mpwds proc``: from shard to shard through a pipeline of the user's."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpwds.cli.options import Force, Json
from mpwds.cli.resharding.options import Output, Shards

if TYPE_CHECKING:
    from mpwds.cli.resharding.proc_jobs import Processing
    from mpwds.pipeline.handlers import Handler


def proc(
    stages: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:NAME",
            help="A list of stages, or a function of a dataset that adds stages to it.",
        ),
    ],
    shards: Shards,
    output: Output,
    jobs: Annotated[int, typer.Option("-j", "--jobs", min=1, metavar="N", help="Worker processes.")] = 4,
    repeat: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Process the shards so often, with other random numbers each time."
        ),
    ] = 1,
    seed: Annotated[int, typer.Option(help="Determines the random numbers, whatever the workers.")] = 0,
    on_error: Annotated[
        str,
        typer.Option(
            metavar="stop|skip|FILE.jsonl",
            help="At a sample that fails: stop; skip it with a warning; or skip it and list it in a file.",
        ),
    ] = "stop",
    journal: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Notes what was begun; by default beside the output.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Process shards through your pipeline: each becomes one shard of the series OUTPUT.

    Write `mpwds proc augment.py:stages in-{000..099}.tar out-%06d.tar -j 8`. The stages get undecoded samples
    (begin with mpwds.decode) and yield dicts with __key__, whose fields are encoded by their names. With
    --repeat 3, the series is three times as long, and keys of later rounds end in -1 and -2.

    A run that was killed continues: write the same command again, and shards that are complete stay, unless
    SHARDS or your code have changed. The same command writes the same bytes, whatever the number of workers.
    """
    from mpwds.cli.feed.serve import load
    from mpwds.cli.journal import begun
    from mpwds.cli.outputs import report
    from mpwds.cli.resharding.proc_jobs import Processing, own_code
    from mpwds.cli.shards import shard_urls
    from mpwds.storage.writing.tar_writer import shown_bytes
    from mpwds.viewing.wording import counted

    processing = Processing(load(stages), shard_urls(shards), output, repeat, seed, _handler(on_error))
    names = [job.output for job in processing.jobs]
    where = stages.rpartition(":")[0]
    code = own_code(Path(where).stem if where.endswith(".py") else where)
    with begun(output, names, processing.describe(code), force, journal, keep=True) as done:
        figures = _run(processing, jobs, done)
    written = len(processing.jobs) - len(done)
    skipped = f"; {figures['skipped']:,} samples skipped" if on_error != "stop" else ""
    before = f"; {len(done)} were complete before" if done else ""
    text = (
        f"{counted(figures['samples'], 'sample')}, {shown_bytes(figures['bytes'])}: "
        f"{counted(written, 'shard')} written{before}{skipped}"
    )
    values = {**figures, "shards": written, "complete_before": len(done)}
    report(as_json, values, text, to_stderr=output == "-")


def _handler(on_error: str) -> Handler:
    from mpwds.pipeline.handlers import reraise_exception
    from mpwds.pipeline.quarantine import quarantine

    if on_error.endswith(".jsonl"):
        return quarantine(on_error, budget=None)
    if on_error not in ("stop", "skip"):
        raise typer.BadParameter(f"--on-error {on_error}: expected stop, skip or the name of a .jsonl file")
    return reraise_exception if on_error == "stop" else _tell_and_skip


def _tell_and_skip(error: Exception) -> bool:
    from mpwds.viewing.wording import printable

    text = ", ".join([f"skipped: {error!r}", *getattr(error, "__notes__", ())])
    os.write(sys.stderr.fileno(), f"{printable(' '.join(text.split()))}\n".encode())  # whole, beside others
    return True


def _run(processing: Processing, workers: int, done: set[str]) -> Counter[str]:
    """Does the jobs that are left, and adds up their figures."""
    from mpwds.cli.notes import drop_notes
    from mpwds.cli.progress import progress
    from mpwds.loader.multi_loader import MultiLoader
    from mpwds.pipeline.dataset import DataPipeline

    figures = Counter(samples=0, bytes=0, skipped=0)
    jobs = [job for job in processing.jobs if job.output not in done]
    if not jobs:
        return figures
    piped = "-" in (processing.output, *processing.urls)  # which are this process's own
    loader = MultiLoader(
        DataPipeline(jobs).map(processing),
        workers=0 if piped else min(workers, len(jobs)),
        in_order=False,
        start_method="forkserver",
        on_worker_death="restart",
        output="numpy",
    )
    try:
        with loader, progress(len(processing.jobs), len(done), in_bytes=False) as advance:
            for of_job in loader:
                figures.update(of_job)
                advance(1, f"{figures['samples']:,} samples")
    except Exception as error:
        drop_notes(error, type(processing).__name__)
        raise
    return figures
