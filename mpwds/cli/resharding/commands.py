"""``mpwds split``, ``merge``, ``shuffle`` and ``sort``: the same samples in other shards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from mpwds.cli.options import Force, Json
from mpwds.cli.resharding.options import (
    Duplicates,
    MaxCount,
    MaxSize,
    Memory,
    OnDuplicates,
    Output,
    Shards,
    Temporary,
)

if TYPE_CHECKING:
    from mpwds.cli.resharding.raw_samples import RawSample


def split(
    shards: Shards,
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
    from mpwds.cli.resharding.reshard import reshard

    if maxcount is None and maxsize is None:
        raise typer.BadParameter("say where to split: --maxcount 1000, --maxsize 500MB, or both")
    reshard(shards, output, maxcount, maxsize, duplicates, force, as_json)


def merge(
    shards: Shards,
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
    from mpwds.cli.resharding.reshard import reshard

    reshard(shards, output, maxcount, maxsize, duplicates, force, as_json)


def shuffle(
    shards: Shards,
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
    import random

    from mpwds.cli.resharding.ordering import dealt
    from mpwds.cli.resharding.reshard import reshard
    from mpwds.cli.resharding.spool import temporary_directory

    directory = tmp or temporary_directory(output)

    def arrange(samples: Iterator[RawSample]) -> Iterator[RawSample]:
        draw = random.Random(seed).random
        return dealt(((draw(), sample) for sample in samples), memory, directory)

    reshard(shards, output, maxcount, maxsize, duplicates, force, as_json, arrange)


def sort(
    shards: Shards,
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
    from mpwds.cli.resharding.ordering import fields_of, merged, rank_of
    from mpwds.cli.resharding.reshard import reshard
    from mpwds.cli.resharding.spool import temporary_directory

    directory = tmp or temporary_directory(output)

    def arrange(samples: Iterator[RawSample]) -> Iterator[RawSample]:
        ranked = ((rank_of(sample, by, text), sample) for sample in samples)
        return merged(ranked, memory, directory, reverse)

    reshard(shards, output, maxcount, maxsize, duplicates, force, as_json, arrange, fields_of(by))
