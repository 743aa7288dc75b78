"""``mpwds convert``: between tar shards, MDS datasets and record files."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpwds.cli.console import console, progress, report, table
from mpwds.cli.options import Force, Json, parse_size
from mpwds.cli.outputs import (
    make_folders,
    refuse_existing,
    refuse_limits,
    refuse_own_input,
    shard_pattern,
    warn_of_older,
)
from mpwds.pipeline.sources.formats import FORMATS, Format, find_format, format_named
from mpwds.viewing.wording import counted, size

if TYPE_CHECKING:
    from rich.table import Table

    from mpwds.cli.encodings import Plan

_FORMATS = "tar, mds (version 2), mds1 (composer's), msgpack or cbor"


def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Tar shards, an MDS dataset's folder or URL, record files, a description, or -.",
        ),
    ],
    destination: Annotated[
        str,
        typer.Argument(
            metavar="OUTPUT", help="Shards such as out-%06d.tar or .msgpack, one file, -, or a folder."
        ),
    ],
    from_: Annotated[str, typer.Option("--from", metavar="FORMAT", help=f"Of SOURCE: {_FORMATS}.")] = "",
    to: Annotated[
        str, typer.Option("--to", metavar="FORMAT", help="Of OUTPUT; a folder gets mds, or tar from MDS.")
    ] = "",
    columns: Annotated[
        str,
        typer.Option(
            metavar="NAME:TARGET,...",
            help="What to take, and the encodings of MDS columns (jpg:jpeg,cls:int) or the fields of other "
            "formats (image:jpg, id:__key__); label=cls:int renames.",
        ),
    ] = "",
    keys: Annotated[bool, typer.Option("--keys/--no-keys", help="Keep keys, in MDS as a column.")] = True,
    maxcount: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", show_default="10000", help="Samples in a shard, at most; not of MDS."
        ),
    ] = None,
    maxsize: Annotated[
        str, typer.Option(metavar="SIZE", help="Size of a shard: 1GB, or 64MiB (MDS), or 16MiB (mds1).")
    ] = "",
    compression: Annotated[
        str, typer.Option(metavar="KIND", help="Of MDS shards: zstd:7, gz, br, bz2, snappy.")
    ] = "",
    hashes: Annotated[str, typer.Option(metavar="NAME,...", help="In an MDS index: sha1,xxh64.")] = "",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Convert a dataset between tar shards, MDS datasets and files of records.

    What becomes of each field is guessed by its extension or encoding, and shown; --columns says it otherwise
    and leaves out all others. The bytes of images, texts and JSON stay as they are. Columns of MDS hold a
    value in every sample, so a sample that lacks one is an error. Pickles are copied, and never read.
    """
    from mpwds.cli.encodings import KEY, convert_fields, plan_fields
    from mpwds.storage.writing.sinks import WriteOptions

    format, place = _source(source, from_)
    dataset = format.samples(place)
    target, where = _target(destination, to, format)
    kind, in_columns = target.name, bool(target.indexes)
    if in_columns:
        if maxcount:
            raise typer.BadParameter("--maxcount is not for MDS, whose shards are limited by --maxsize")
    else:
        refuse_limits(where, maxcount or maxsize)
        if os.path.realpath(os.path.dirname(where)) == os.path.realpath(source):
            raise ValueError(f"{where} would lie in the dataset that is read: choose another folder")
    refuse_own_input(dataset.urls, where)
    samples = dataset.read()
    first = next(samples, None)
    if first is None:
        raise ValueError(f"{source}: there is no sample in it")
    plan = plan_fields(first, dataset.columns, kind, columns)
    told = console(where == "-" or as_json)
    told.print(_plan_table(plan, dataset.columns, format.name, kind))
    encodings = {new: target for new, target, _ in plan.values()}
    if not in_columns:
        refuse_existing([where], force)
        make_folders([where])
    if keys and in_columns:
        encodings[KEY] = "str"
    hash_names = tuple(sorted(filter(None, hashes.split(","))))
    limit = parse_size(maxsize) if maxsize else None
    count, total, began = 0, 0, time.monotonic()
    options = WriteOptions(maxcount or 10_000, limit, compression, hash_names, force)
    with target.writer(where, encodings, options) as sink, progress(dataset.count) as advance:
        for sample in itertools.chain([first], samples):
            if not columns and (extra := sample.keys() - plan.keys() - {KEY}):
                if in_columns:
                    raise ValueError(
                        f"sample {sample[KEY]!r} has a field {min(extra)!r}, which the first sample has not: "
                        "say with --columns what to take"
                    )
                plan |= plan_fields({name: sample[name] for name in sorted(extra)}, dataset.columns, kind, "")
            wanted = plan if columns or in_columns else sample.keys() - {KEY}
            fields = {name: (new, to) for name, (new, _, to) in plan.items() if name in wanted}
            converted: dict[str, Any] = convert_fields(sample, fields)
            nbytes = sum(map(len, converted.values()))
            key = converted[KEY].decode() if KEY in converted else sample[KEY]
            converted[KEY] = key.encode() if kind == "mds1" else key
            sink.write(converted)
            count += 1
            total += nbytes
            advance(1, "converting")
    if not in_columns:
        warn_of_older(where, sink.shards)
    if as_json:
        shown = {name: {"to": new, "as": target} for name, (new, target, _) in plan.items()}
        figures = {"samples": count, "bytes": total, "shards": len(sink.shards), "format": kind}
        report(as_json, {**figures, "fields": shown}, to_stderr=where == "-")
    what = f"{counted(count, 'sample')} ({size(total)}, {time.monotonic() - began:.1f} s)"
    told.print(f"wrote {what} to {counted(len(sink.shards), 'shard')}: {where} ({kind})")


def _source(source: str, name: str) -> tuple[Format, str]:
    """The format of the dataset to read, and the dataset as the format takes it."""
    if name:
        format = _named("--from", name)
        return format, format.find(source) or source
    found = find_format(source)
    if found is None:
        raise ValueError(f"{source} does not tell its format: give --from {_FORMATS}")
    return found


def _named(option: str, name: str) -> Format:
    try:
        return format_named(name)
    except ValueError as error:
        raise typer.BadParameter(f"{option} {name}: {error}") from None


def _target(destination: str, name: str, source: Format) -> tuple[Format, str]:
    """The format to write, and the folder, pattern or name to write to."""
    if name:
        format = _named("--to", name)
    else:
        last = destination.rpartition("/")[2]
        found = (each for each in FORMATS.values() if not each.indexes and each.find(last or destination))
        format = next(found, FORMATS["tar" if source.indexes else "mds"])
    return format, destination if format.indexes else shard_pattern(destination, ending=f".{format.name}")


def _plan_table(plan: Plan, columns: Mapping[str, str], source: str, target: str) -> Table:
    """A table of what becomes of each field."""
    rows = []
    for name, (new, encoding, _) in plan.items():
        before = f"{name} ({columns[name]})" if name in columns else name
        rows.append((before, f"{new} ({encoding})" if encoding else new))
    names = (f"from {source}", f"to {target}")
    return table("", names, rows, names)
