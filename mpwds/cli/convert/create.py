"""``mpwds create``: makes tar shards of files, lists and datasets of other formats."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpwds.cli.console import console, report, table
from mpwds.cli.journal import resume_or_start
from mpwds.cli.options import Distributed, Force, Json, parse_size
from mpwds.cli.outputs import (
    beside,
    refuse_existing,
    refuse_inside,
    refuse_limits,
    refuse_own_input,
    shard_pattern,
)
from mpwds.cli.shards import expanded
from mpwds.errors import WrongArgument
from mpwds.storage.streams.urls import is_local
from mpwds.storage.writing.destinations import open_destination, write_whole
from mpwds.viewing.wording import counted, printable, size

if TYPE_CHECKING:
    from mpwds.cli.convert.writing import Written


def create(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A folder of files, a list (.csv .tsv .jsonl .parquet .arrow), the folder of a Hugging Face "
            "or MDS dataset, or - for a list on standard input.",
        ),
    ],
    output: Annotated[
        str,
        typer.Argument(
            metavar="OUTPUT",
            help="Shards such as out-%06d.tar or %s-%06d.tar (for splits), a folder for them, x.tar, or -.",
        ),
    ],
    over: Distributed,
    kind: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="KIND",
            help="What SOURCE is: classes or groups (a folder), files (names, one a line), csv, jsonl, ...",
        ),
    ] = "",
    columns: Annotated[
        str,
        typer.Option(
            metavar="COLUMN:FIELD,...", help="Fields of a list's columns: image:jpg,label:cls,*:json."
        ),
    ] = "",
    key: Annotated[str, typer.Option(metavar="COLUMN", help="The column with the samples' keys.")] = "",
    root: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where names of files in a list start: its folder.")
    ] = None,
    split: Annotated[str, typer.Option(metavar="NAME", help="Take only this split of SOURCE.")] = "",
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Put all samples in random order.")] = False,
    seed: Annotated[int, typer.Option(help="Determines the order, and what --train takes.")] = 0,
    train: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Make train-* shards of this share, and val-* of the rest."),
    ] = None,
    maxcount: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Samples in a shard, at most.")
    ] = None,
    maxsize: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            show_default="about 100MB, at least 16 shards",
            help="Bytes of a shard's tar archive, at most; of lists and MDS, about.",
        ),
    ] = "",
    jobs: Annotated[
        int, typer.Option("-j", "--jobs", min=0, metavar="N", help="Processes; 0: one for each processor.")
    ] = 0,
    index: Annotated[
        bool, typer.Option("--index", help="Write a wids description beside the shards, too.")
    ] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Make tar shards of a folder of files, a list, a Hugging Face dataset, or MDS.

    Files that agree up to the first dot of their names are a sample. A folder of folders with single files is
    one of classes: samples get the class's number as `cls`, and `out.classes.json` beside shards `out-*.tar`
    holds the names. Folders named train, val or test are splits.

    The columns of a list become fields: files that they name or hold by their extension, a label `cls`, a
    text `txt`, and the others together `json`; --columns says it otherwise. Those of MDS keep their names.

    Shards depend on the source and --seed alone, not on -j, byte for byte. Each appears when it is complete.
    A run that was killed continues: write the same command again. If all is complete, it does nothing.

    Many machines make the shards together with --part 0/64 to --part 63/64, each with one of them, or with
    --on ray. Each looks at all of SOURCE, which decides what is in which shard. At the end, the same command
    without --part makes what is missing, and the --index.
    """
    from mpwds.cli.convert.finding import Wanted, find
    from mpwds.cli.convert.folders import Tree
    from mpwds.cli.convert.writing import choose, plan_shards, shuffled, write_shards

    refuse_limits(output, maxcount or maxsize)
    if over.part is not None and index:
        raise WrongArgument("--index describes all shards: make it at the end, by a run without --part")
    told = console(output == "-" or as_json)
    with contextlib.ExitStack() as ends:

        def scratch() -> str:
            if over.on is not None:
                raise WrongArgument("--on ray: copies of SOURCE would be on this machine only: use --part")
            return ends.enter_context(tempfile.TemporaryDirectory(prefix="mpwds-create-"))

        found = find(source, Wanted(scratch, kind, columns, key, root, shuffle))
        if any(isinstance(samples, Tree) for samples in found.splits.values()):
            refuse_inside(source, output)
        splits = choose(found.splits, split, train, seed)
        if shuffle:
            splits = {name: (all, shuffled(some, seed)) for name, (all, some) in splits.items()}
        patterns = {name: shard_pattern(output, name, splits) for name in splits}
        most = parse_size(maxsize) if maxsize else None
        planned = {name: plan_shards(patterns[name], *splits[name], maxcount, most) for name in splits}
        shards = [shard for each in planned.values() for shard in each]
        files = _class_files(patterns, found.classes)
        descriptions = [beside(pattern, ".json") for pattern in patterns.values()] if index else []
        first, *also = [*patterns.values(), *files, *descriptions]
        for name in (first, *also):
            refuse_own_input(expanded([source]), name)
        options = [kind, columns, key, root, split, shuffle, seed, train, maxcount, maxsize]
        samples = {shard.url: shard.total for shard in shards}
        run = {"source": source, "options": options, "samples": samples, "inputs": found.digest}
        done: set[str] = set()
        if over.part is not None or (is_local(first) and first != "-"):
            began_or_resumed = resume_or_start(first, list(samples), run, force, also=also, part=over.part)
            done = ends.enter_context(began_or_resumed)
        else:
            refuse_existing([*samples, *files, *descriptions], force)
        counts = ", ".join(f"{len(samples):,} {name}".strip() for name, samples in found.splits.items())
        told.print(f"{printable(source)}: {found.text}; samples: {counts}")
        for note in found.notes:
            told.print(printable(note), style="yellow")
        if found.fields:
            told.print(table("", ("column", "field"), list(found.fields.items()), ("column", "field")))
        began = time.monotonic()
        own = shards if over.part is None else over.part.of(shards)
        jobs = jobs or (0 if over.on else len(os.sched_getaffinity(0)))
        written = write_shards(own, jobs, done, over.on)
        rest = iter(written)
        for url, part in zip(descriptions, planned.values(), strict=False):
            files[url] = describe(url, list(itertools.islice(rest, len(part))))
        for url, content in files.items():
            write_whole(open_destination(url, replace=False), json.dumps(content, indent=2).encode())
    if as_json:
        values = {"shards": [vars(shard) for shard in written], "files": list(files)}
        report(as_json, values, to_stderr=output == "-")
    told.print(_summary(written, time.monotonic() - began, list(files)))


def _class_files(patterns: Mapping[str, str], classes: Mapping[str, Iterable[str]]) -> dict[str, Any]:
    """The files that name classes, and their contents: those of each series, beside its shards."""
    if "-" in patterns.values():
        return {}
    names = {field: f".{field}.classes.json" if len(classes) > 1 else ".classes.json" for field in classes}
    return {
        beside(pattern, names[field]): list(classes[field])
        for pattern in patterns.values()
        for field in classes
    }


def describe(url: str, shards: Sequence[Written]) -> dict[str, Any]:
    """The wids description of shards that are in the same folder."""
    return {
        "wids_version": 1,
        "name": os.path.splitext(os.path.basename(url))[0],
        "shardlist": [
            {
                "url": shard.url.rpartition("/")[2],
                "nsamples": shard.samples,
                **({} if shard.filesize is None else {"filesize": shard.filesize}),
            }
            for shard in shards
        ],
    }


def _summary(written: Sequence[Written], seconds: float, files: Sequence[str]) -> str:
    now = [shard for shard in written if shard.nbytes is not None]
    samples, nbytes = sum(shard.samples for shard in now), sum(shard.nbytes or 0 for shard in now)
    each = itertools.groupby((shard.url for shard in written), lambda url: re.sub(r"\d+", "", url))
    series = [list(urls) for _, urls in each]
    names = ", ".join(" to ".join(dict.fromkeys((urls[0], urls[-1]))) for urls in series)
    also = f"; also {', '.join(files)}" if files else ""
    if written and not now:
        return f"no shard to write: {counted(len(written), 'shard')} complete before: {names}{also}"
    before = f"; {len(written) - len(now)} were complete before" if len(now) < len(written) else ""
    what = f"{counted(samples, 'sample')} ({size(nbytes)}, {seconds:.1f} s)"
    return f"wrote {what} to {counted(len(now), 'shard')}{before}: {names}{also}"
