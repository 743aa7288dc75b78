"""``mpwds split``, ``merge``, ``shuffle``, ``sort``: the same samples in other shards; and ``mpwds proc``."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpwds.cli.console import progress, report
from mpwds.cli.journal import resume_or_start
from mpwds.cli.options import (
    Duplicates,
    Force,
    Json,
    MaxCount,
    MaxSize,
    Memory,
    OnDuplicates,
    Output,
    TarShards,
    Temporary,
)
from mpwds.cli.outputs import refuse_own_input, warn_of_older
from mpwds.cli.reshard.ordering import (
    bucket_shuffle,
    external_sort,
    fields_of,
    rank_of,
    temporary_directory,
)
from mpwds.cli.reshard.raw_samples import OpenFiles, RawSample, read_raw_samples
from mpwds.cli.shards import load, shard_urls
from mpwds.errors import ShardError
from mpwds.storage.streams.urls import is_local, local_path
from mpwds.viewing.wording import counted, size

if TYPE_CHECKING:
    from mpwds.cli.reshard.sink import ShardSink

_SHOWN_BYTES = 1 << 20  # at a time, in the progress bar

Arrange = Callable[[Iterator[RawSample]], Iterable[RawSample]]


def split(
    shards: TarShards,
    output: Output,
    maxcount: MaxCount = None,
    maxsize: MaxSize = None,
    duplicates: OnDuplicates = Duplicates.error,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Split shards into smaller ones, by the number of samples or by size.

    Write `mpwds split in.tar out-%06d.tar --maxcount 1000`, or `--maxsize 500MB`. Samples stay in their order
    and are copied as they are, with names, times and modes; none is divided.
    """
    if maxcount is None and maxsize is None:
        raise typer.BadParameter("say where to split: --maxcount 1000, --maxsize 500MB, or both")
    reshard(shards, output, maxcount, maxsize, duplicates, force, as_json)


def merge(
    shards: TarShards,
    output: Output,
    maxcount: MaxCount = None,
    maxsize: MaxSize = None,
    duplicates: OnDuplicates = Duplicates.error,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Merge shards into one, or into fewer with --maxcount or --maxsize.

    Write `mpwds merge in-{000..099}.tar all.tar`, or `out-%03d.tar --maxsize 1GB`. Samples stay in
    their order and are copied as they are, with names, times and modes.
    """
    reshard(shards, output, maxcount, maxsize, duplicates, force, as_json)


def shuffle(
    shards: TarShards,
    output: Output,
    maxcount: MaxCount = None,
    maxsize: MaxSize = None,
    seed: Annotated[int, typer.Option(help="Determines the order, whatever the memory.")] = 0,
    memory: Memory = 10**9,
    tmp: Temporary = None,
    duplicates: OnDuplicates = Duplicates.error,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Shuffle all samples of shards, also of more than fit in memory.

    Every order of the samples is equally likely. What does not fit in --memory goes through temporary files,
    which take as much room as the samples and vanish with the command, however it ends.
    """
    directory = tmp or temporary_directory(output)

    def arrange(samples: Iterator[RawSample]) -> Iterator[RawSample]:
        ranks = iter(random.Random(seed).random, None)
        return bucket_shuffle(zip(ranks, samples, strict=False), memory, directory)

    reshard(shards, output, maxcount, maxsize, duplicates, force, as_json, arrange)


def sort(
    shards: TarShards,
    output: Output,
    by: Annotated[
        str,
        typer.Option(metavar="FIELD", help="__key__, a field such as cls, or json.score: a value in one."),
    ] = "__key__",
    text: Annotated[bool, typer.Option("--text", help="Compare numbers as texts, too.")] = False,
    reverse: Annotated[bool, typer.Option("--reverse", help="The largest first.")] = False,
    maxcount: MaxCount = None,
    maxsize: MaxSize = None,
    memory: Memory = 10**9,
    tmp: Temporary = None,
    duplicates: OnDuplicates = Duplicates.error,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Sort all samples of shards by their keys or by a field, also more than fit in memory.

    Values that are numbers are compared as numbers and come before texts; keys are texts. Samples of equal
    value stay in their order. What does not fit in --memory goes through temporary files, which take as much
    room as the samples and vanish with the command, however it ends.
    """
    directory = tmp or temporary_directory(output)

    def arrange(samples: Iterator[RawSample]) -> Iterator[RawSample]:
        ranked = ((rank_of(sample, by, text), sample) for sample in samples)
        return external_sort(ranked, memory, directory, reverse)

    reshard(shards, output, maxcount, maxsize, duplicates, force, as_json, arrange, fields_of(by))


def proc(
    stages: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:NAME",
            help="A list of stages, or a function of a dataset that adds stages to it.",
        ),
    ],
    shards: TarShards,
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
    from mpwds.cli.reshard.proc import Processing, make_handler, own_code, run

    processing = Processing(load(stages), shard_urls(shards), output, repeat, seed, make_handler(on_error))
    names = [job.output for job in processing.jobs]
    where = stages.rpartition(":")[0]
    code = own_code(Path(where).stem if where.endswith(".py") else where)
    with resume_or_start(output, names, processing.describe(code), force, journal, keep=True) as done:
        figures = run(processing, jobs, done)
    written = len(processing.jobs) - len(done)
    skipped = f"; {figures['skipped']:,} samples skipped" if on_error != "stop" else ""
    before = f"; {len(done)} were complete before" if done else ""
    text = (
        f"{counted(figures['samples'], 'sample')}, {size(figures['bytes'])}: "
        f"{counted(written, 'shard')} written{before}{skipped}"
    )
    values = {**figures, "shards": written, "complete_before": len(done)}
    report(as_json, values, text, to_stderr=output == "-")


def reshard(
    patterns: list[str],
    output: str,
    maxcount: int | None,
    maxsize: int | None,
    duplicates: Duplicates,
    force: bool,
    as_json: bool,
    arrange: Arrange = iter,
    fields: Collection[str] = (),
) -> None:
    """Copies the samples of shards to other shards, and prints how many there are.

    Args:
        patterns: The shards, as for ``shard_urls``.
        output: As for :class:`ShardSink`, and so are the limits, ``duplicates`` and ``force``.
        as_json: Print JSON.
        arrange: Puts the samples in their new order.
        fields: Extensions of the fields that ``arrange`` looks at.

    Raises:
        ShardError: A shard is damaged, or samples got lost.
        ValueError: A shard would be replaced by what is read from it.
    """
    from mpwds.cli.reshard.sink import ShardSink

    urls = shard_urls(patterns)
    refuse_own_input(urls, output)
    read = 0

    def counting(samples: Iterator[RawSample]) -> Iterator[RawSample]:
        nonlocal read
        size = 0
        for sample in samples:
            read += 1
            size += sample.size
            if size >= _SHOWN_BYTES:
                advance(size, f"{read:,} samples")
                size = 0
            yield sample
        advance(size, f"{read:,} samples")

    with contextlib.ExitStack() as ends:
        files = ends.enter_context(contextlib.closing(OpenFiles()))
        advance = ends.enter_context(progress(_local_size(urls), in_bytes=True))
        sink = ends.enter_context(ShardSink(output, maxcount, maxsize, force, duplicates))
        for sample in arrange(counting(read_raw_samples(urls, files, fields))):
            sink.add(sample)
        if sink.samples != read:
            raise ShardError(f"{read} samples were read, but {sink.samples} written")
    _report(urls, sink, output, as_json)


def _local_size(urls: Iterable[str]) -> int | None:
    """The bytes of shards; ``None`` if not all of them are local files."""
    if not all(is_local(url) and url != "-" for url in urls):
        return None
    return sum(os.path.getsize(local_path(url)) for url in urls)


def _report(urls: list[str], sink: ShardSink, output: str, as_json: bool) -> None:
    written = sink.shards
    warn_of_older(output, written)
    names = " ... ".join(dict.fromkeys([*written[:1], *written[-1:]]))
    counts = f"from {counted(len(urls), 'shard')} to {len(written)}"
    text = f"{sink.samples:,} samples, {size(sink.bytes)}, {counts}: {names}"
    figures = {"samples": sink.samples, "bytes": sink.bytes, "shards": written}
    report(as_json, figures, text, to_stderr=output == "-")
