"""``mpwds split``, ``merge``, ``shuffle``, ``sort``: the same samples in other shards; and ``mpwds proc``."""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, BadParameter, Option

from mpwds.cli.console import complete_before, progress, report
from mpwds.cli.options import Distributed, Resharding, ShardByShard, Spilling
from mpwds.cli.outputs import is_stdout, path_of, refuse_own_input, warn_of_older
from mpwds.cli.reshard.ordering import bucket_shuffle, external_sort, fields_of, rank_of, temporary_directory
from mpwds.cli.reshard.raw_samples import OpenFiles, RawSample, read_raw_samples
from mpwds.cli.shards import load, shard_urls
from mpwds.errors import ShardError
from mpwds.viewing.wording import counted, size

_SHOWN_BYTES = 1 << 20  # at a time, in the progress bar

Arrange = Callable[[Iterator[RawSample]], Iterable[RawSample]]


def split(to: Resharding) -> None:
    """Split shards into smaller ones, by the number of samples or by size.

    Write `mpwds split in.tar out-%06d.tar --maxcount 1000`, or `--maxsize 500MB`. Samples stay in their order
    and are copied as they are, with names, times and modes; none is divided.
    """
    if to.maxcount is None and to.maxsize is None:
        raise BadParameter("say where to split: --maxcount 1000, --maxsize 500MB, or both")
    reshard(to)


def merge(to: Resharding) -> None:
    """Merge shards into one, or into fewer with --maxcount or --maxsize.

    Write `mpwds merge in-{000..099}.tar all.tar`, or `out-%03d.tar --maxsize 1GB`. Samples stay in
    their order and are copied as they are, with names, times and modes.
    """
    reshard(to)


def shuffle(
    to: Resharding,
    spilling: Spilling,
    over: Distributed,
    seed: Annotated[int, Option(help="Determines the order, whatever the memory.")] = 0,
) -> None:
    """Shuffle all samples of shards, also of more than fit in memory.

    Every order of the samples is equally likely. What does not fit in --memory goes through temporary files,
    which take as much room as the samples and vanish with the command, however it ends.

    Many machines do one job with --part 0/64 to --part 63/64, each with one of them, or with --on ray. Then
    there are as many shards as are read, and their order is another one. They work in two rounds, with
    temporary shards beside OUTPUT. A part that finds the first round unfinished says so: write the same
    command again when all parts have ended. A run that was killed continues.
    """
    if over.part is not None or over.on is not None:
        from mpwds.cli.reshard.two_rounds import shuffle_in_rounds

        figures = shuffle_in_rounds(to, spilling, seed, over)
        return report(to.as_json, dict(figures), _sum_up(figures))
    directory = spilling.tmp or temporary_directory(to.output)

    def arrange(samples: Iterator[RawSample]) -> Iterator[RawSample]:
        ranks = iter(random.Random(seed).random, None)
        in_order = bucket_shuffle(zip(ranks, samples, strict=False), spilling.memory, directory)
        return map(itemgetter(1), in_order)

    return reshard(to, arrange)


def _sum_up(figures: Mapping[str, int]) -> str:
    written = f"{counted(figures['shards'], 'shard')} written{complete_before(figures['complete_before'])}"
    return f"{counted(figures['samples'], 'sample')}, {size(figures['bytes'])}: {written}"


def sort(
    to: Resharding,
    spilling: Spilling,
    by: Annotated[
        str, Option(metavar="FIELD", help="__key__, a field such as cls, or json.score: a value in one.")
    ] = "__key__",
    text: Annotated[bool, Option("--text", help="Compare numbers as texts, too.")] = False,
    reverse: Annotated[bool, Option("--reverse", help="The largest first.")] = False,
) -> None:
    """Sort all samples of shards by their keys or by a field, also more than fit in memory.

    Values that are numbers are compared as numbers and come before texts; keys are texts. Samples of equal
    value stay in their order. What does not fit in --memory goes through temporary files, which take as much
    room as the samples and vanish with the command, however it ends.
    """
    directory = spilling.tmp or temporary_directory(to.output)

    def arrange(samples: Iterator[RawSample]) -> Iterator[RawSample]:
        ranked = ((rank_of(sample, by, text), sample) for sample in samples)
        return external_sort(ranked, spilling.memory, directory, reverse)

    reshard(to, arrange, fields_of(by))


def proc(
    stages: Annotated[
        str,
        Argument(metavar="FILE.py:NAME", help="A list of stages, or a function that adds them to a dataset."),
    ],
    to: ShardByShard,
    over: Distributed,
    repeat: Annotated[
        int,
        Option(min=1, metavar="N", help="Process shards so often, with other random numbers each time."),
    ] = 1,
    seed: Annotated[int, Option(help="Determines the random numbers, whatever the workers.")] = 0,
) -> None:
    """Process shards through your pipeline: each becomes one shard of the series OUTPUT.

    Write `mpwds proc augment.py:stages in-{000..099}.tar out-%06d.tar -j 8`. The stages get undecoded samples
    (begin with mpwds.decode) and yield dicts with __key__, whose fields are encoded by their names. With
    --repeat 3, the series is three times as long, and keys of later rounds end in -1 and -2.

    A run that was killed continues: write the same command again, and shards that are complete stay, unless
    SHARDS or your code have changed. The same command writes the same bytes, whatever the number of workers.

    Many machines do one job with --part 0/64 to --part 63/64, each with one of them, or with --on ray.
    """
    from mpwds.cli.reshard.proc import Processing, own_code

    where = stages.rpartition(":")[0]
    processing = Processing(load(stages), to, Counter(), repeat, seed)
    code = own_code(Path(where).stem if where.endswith(".py") else where)
    report_processed(to, processing.run(over, code))


def report_processed(to: ShardByShard, counts: Counter[str], more: Mapping[str, Any] = {}) -> None:
    """Prints how much was written; for programs, with ``more`` figures."""
    figures, shards = ("samples", "bytes", "skipped"), ("shards", "complete_before")
    values = {**{name: counts[name] for name in figures}, **more, **{name: counts[name] for name in shards}}
    skipped = f"; {counted(counts['skipped'], 'sample')} skipped" if to.on_error != "stop" else ""
    report(to.as_json, values, _sum_up(counts) + skipped, to_stderr=is_stdout(to.output))


def reshard(to: Resharding, arrange: Arrange = iter, fields: Collection[str] = ()) -> None:
    """Copies samples ``to`` other shards, as ``arrange`` puts them in order, and prints how many there are.

    ``fields`` are the extensions of the fields that ``arrange`` looks at.
    """
    from mpwds.cli.reshard.sink import ShardSink

    urls = shard_urls(to.shards)
    refuse_own_input(urls, to.output)
    read = 0

    def counting(samples: Iterator[RawSample]) -> Iterator[RawSample]:
        nonlocal read
        unshown = 0
        for sample in samples:
            read += 1
            unshown += sample.size
            if unshown >= _SHOWN_BYTES:
                advance(unshown, f"{read:,} samples")
                unshown = 0
            yield sample
        advance(unshown, f"{read:,} samples")

    with contextlib.ExitStack() as ends:
        files = ends.enter_context(OpenFiles())
        advance = ends.enter_context(progress(_local_size(urls), in_bytes=True))
        sink = ends.enter_context(ShardSink(to))
        for sample in arrange(counting(read_raw_samples(urls, files, fields))):
            sink.add(sample)
        if sink.samples != read:
            raise ShardError(f"{read} samples were read, but {sink.samples} written")
    warn_of_older(to.output, sink.shards)
    names = " ... ".join(dict.fromkeys([*sink.shards[:1], *sink.shards[-1:]]))
    counts = f"from {counted(len(urls), 'shard')} to {len(sink.shards)}"
    text = f"{sink.samples:,} samples, {size(sink.bytes)}, {counts}: {names}"
    figures = {"samples": sink.samples, "bytes": sink.bytes, "shards": sink.shards}
    report(to.as_json, figures, text, to_stderr=is_stdout(to.output))


def _local_size(urls: Sequence[str]) -> int | None:
    """The bytes of shards; ``None`` if not all of them are local files."""
    paths = list(filter(None, map(path_of, urls)))
    return sum(map(os.path.getsize, paths)) if len(paths) == len(urls) else None
