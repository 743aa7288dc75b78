"""``mpwds convert``: between tar shards, MDS datasets and record files."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpwds.cli.options import Force, Json, parse_size
from mpwds.viewing.wording import counted, printable, size

if TYPE_CHECKING:
    from rich.console import Console

    from mpwds.cli.making.encodings import Convert
    from mpwds.pipeline.formats import Format, StoredSamples

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
    from mpwds.cli.making.encodings import KEY, convert_fields
    from mpwds.cli.outputs import (
        make_folders,
        plain_console,
        refuse_existing,
        refuse_limits,
        refuse_own_input,
        report,
        warn_of_older,
    )
    from mpwds.cli.progress import progress
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
    plan = _plan(first, dataset, kind, columns)
    console = plain_console(where == "-" or as_json)
    _show(console, plan, dataset, format.name, kind)
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
    with (
        target.writer(where, encodings, options) as sink,
        progress(dataset.count, in_bytes=False) as advance,
    ):
        for sample in itertools.chain([first], samples):
            if not columns and (extra := sample.keys() - plan.keys() - {KEY}):
                if in_columns:
                    raise ValueError(
                        f"sample {sample[KEY]!r} has a field {min(extra)!r}, which the first sample has not: "
                        "say with --columns what to take"
                    )
                plan |= _plan({name: sample[name] for name in sorted(extra)}, dataset, kind, "")
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
        told = {"samples": count, "bytes": total, "shards": len(sink.shards), "format": kind, "fields": shown}
        report(as_json, told, to_stderr=where == "-")
    what = f"{counted(count, 'sample')} ({size(total)}, {time.monotonic() - began:.1f} s)"
    console.print(f"wrote {what} to {counted(len(sink.shards), 'shard')}: {where} ({kind})")


def _source(source: str, name: str) -> tuple[Format, str]:
    """The format of the dataset to read, and the dataset as the format takes it."""
    from mpwds.pipeline.formats import find_format

    if name:
        format = _named("--from", name)
        return format, format.find(source) or source
    found = find_format(source)
    if found is None:
        raise ValueError(f"{source} does not tell its format: give --from {_FORMATS}")
    return found


def _named(option: str, name: str) -> Format:
    from mpwds.pipeline.formats import format_named

    try:
        return format_named(name)
    except ValueError as error:
        raise typer.BadParameter(f"{option} {name}: {error}") from None


def _target(destination: str, name: str, source: Format) -> tuple[Format, str]:
    """The format to write, and the folder, pattern or name to write to."""
    from mpwds.cli.outputs import shard_pattern
    from mpwds.pipeline.formats import FORMATS

    if name:
        format = _named("--to", name)
    else:
        last = destination.rpartition("/")[2]
        found = (each for each in FORMATS.values() if not each.indexes and each.find(last or destination))
        format = next(found, FORMATS["tar" if source.indexes else "mds"])
    return format, destination if format.indexes else shard_pattern(destination, ending=f".{format.name}")


def _plan(
    first: Mapping[str, bytes], dataset: StoredSamples, kind: str, columns: str
) -> dict[str, tuple[str, str, Convert]]:
    """By field or column of the source: its new name, its encoding in MDS, and the function between them."""
    from mpwds.cli.making import encodings

    names = [name for name in first if name != encodings.KEY]
    chosen = encodings.parse(columns, names) if columns else dict.fromkeys(names, ("", ""))
    plan: dict[str, tuple[str, str, Convert]] = {}
    for name, (new, target) in chosen.items():
        stored = dataset.columns.get(name, "")
        field = encodings.field_of(name, stored, first[name]) if stored else name
        if kind == "mds":
            target = target or stored or encodings.guessed_encoding(field)
            plan[name] = (new or name, target, encodings.between(stored, field, target))
        else:
            field = target or field
            plan[name] = (field, "", encodings.from_column(stored, field))
    if len({new for new, _, _ in plan.values()}) < len(plan):
        raise ValueError(
            f"two fields would have one name: {', '.join(sorted(new for new, _, _ in plan.values()))}"
        )
    return plan


def _show(
    console: Console,
    plan: Mapping[str, tuple[str, str, Convert]],
    dataset: StoredSamples,
    source: str,
    kind: str,
) -> None:
    """Says what becomes of each field."""
    from rich.table import Table

    table = Table(source, kind, box=None, pad_edge=False, header_style="bold")
    for name, (new, encoding, _) in plan.items():
        before = f"{name} ({dataset.columns[name]})" if name in dataset.columns else name
        after = f"{new} ({encoding})" if encoding else new
        table.add_row(printable(before), printable(after))
    console.print(table)
