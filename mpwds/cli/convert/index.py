"""``mpwds index``: descriptions of indexed datasets (wids), as ``widsindex`` makes them."""

from __future__ import annotations

import codecs
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from typer import Argument, BadParameter, Option, Typer

from mpwds.cli.console import console, progress, report, table
from mpwds.cli.options import Force, Json
from mpwds.cli.outputs import dashed, is_stdout, make_folders, refuse_existing, refuse_own_input
from mpwds.cli.shards import expanded, shard_urls
from mpwds.storage.streams.gopen import gopen
from mpwds.viewing.wording import counted, printable, size

index = Typer(
    name="index",
    help="Make and change descriptions of indexed datasets (wids), and look into them.",
    add_completion=False,
    rich_markup_mode="rich",
)

_BEGINNING = 40  # characters of a field

Description = Annotated[str, Argument(metavar="FILE", help="Path or URL of a description.")]
Name = Annotated[str | None, Option("-n", "--name", help="The dataset's name.")]
Base = Annotated[str | None, Option("-b", "--base", metavar="URL", help="Where relative URLs start.")]


@index.command()
def create(
    shards: Annotated[
        list[str], Argument(metavar="SHARDS", help="Tar shards, folders of them, or - for a list.")
    ],
    output: Annotated[
        str, Option("-o", "--output", metavar="TARGET", help="File or URL; - for standard output.")
    ] = "shardindex.json",
    name: Name = None,
    info: Annotated[
        str | None, Option("-i", "--info", metavar="FILE", help="A file with text about the dataset.")
    ] = None,
    base: Base = None,
    offsets: Annotated[
        bool, Option("--offsets", help="List where samples begin, so that no reader has to find out.")
    ] = False,
    jobs: Annotated[
        int | None, Option("-j", "--jobs", min=1, metavar="N", help="Shards to read at a time.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Read shards, and write the description that IndexedDataset, ShardListDataset and WebDataset open.

    It lists each shard with its number of samples, size and MD5 sum. A TARGET.shardindex has a binary form,
    which IndexedDataset opens in milliseconds whatever its size; others are JSON.
    """
    from mpwds.storage.indexed.describing import create_description, write_description
    from mpwds.storage.streams.urls import folder_of, url_scheme

    if shards == ["-"]:
        shards = [line for line in os.fsdecode(sys.stdin.buffer.read()).splitlines() if line]
    urls = shard_urls(shards)
    if command := next((url for url in urls if url_scheme(url) == "pipe"), None):
        raise BadParameter(f"{command}: no reader runs a command that a description names: name the shard")
    output = dashed(output)
    refuse_own_input(urls, output)
    refuse_existing([output], force)
    about = None
    if info is not None:
        with gopen(info) as file:
            about = file.read().decode()
    make_folders([output])
    with progress(len(urls)) as advance:
        description = create_description(
            urls,
            name=name,
            base=base,
            info=about,
            relative_to=None if is_stdout(output) else folder_of(output),
            offsets=offsets,
            jobs=jobs,
            progress=lambda url: advance(1, "reading shards"),
        )
    write_description(description, output, replace=force)
    _report_written(output, description["shardlist"], as_json)


@index.command()
def convert(
    description: Description,
    output: Annotated[str, Argument(metavar="TARGET", help="NAME.shardindex or NAME.json.")],
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a description as JSON or in binary form, as the name of TARGET says. No shard is read.

    Shards of the descriptions that it refers to are listed, too.
    """
    from mpwds.storage.indexed.describing import convert_description

    refuse_existing([output], force)
    make_folders([output])
    written = convert_description(description, output, replace=force)
    _report_written(output, written["shardlist"], as_json)


def _report_written(output: str, shards: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    samples = sum(shard["nsamples"] for shard in shards)
    values = {"file": output, "shards": len(shards), "samples": samples}
    text = f"{output}: {counted(len(shards), 'shard')}, {counted(samples, 'sample')}"
    report(as_json, values, text, to_stderr=is_stdout(output))


@index.command()
def update(
    file: Annotated[
        str, Argument(metavar="FILE", help="A local description; the earlier one is kept as FILE.bak.")
    ],
    name: Name = None,
    info: Annotated[str | None, Option("-i", "--info", help="Text about the dataset.")] = None,
    base: Base = None,
    keep: Annotated[
        bool | None, Option("--keep/--nokeep", "-k/-K", help="Whether readers keep copies of shards.")
    ] = None,
    directory: Annotated[
        str | None, Option("-d", "--dir", metavar="DIR", help="Replaces the folder of each shard.")
    ] = None,
    nodir: Annotated[bool, Option("-D", "--nodir", help="Leave the shards' names alone.")] = False,
    rebase: Annotated[
        bool, Option("-B", "--rebase", help="Make the folder that all shards are in the base.")
    ] = False,
) -> None:
    """Change a description: its name, text, base, or the folders of its shards."""
    from mpwds.storage.indexed.describing import update_description

    if nodir and directory is not None:
        raise BadParameter("--dir names a folder, and --nodir none: give one of them")
    directory = "" if nodir else directory
    update_description(file, name=name, info=info, base=base, keep=keep, directory=directory, rebase=rebase)


@index.command()
def info(
    descriptions: Annotated[list[str], Argument(metavar="FILE", help="Descriptions.")],
    in_lines: Annotated[bool, Option("-t", "--table", help="One line for each.")] = False,
    as_json: Json = False,
) -> None:
    """Show what descriptions say: shards, samples and sizes, with those of the datasets they refer to."""
    from mpwds.storage.indexed.describing import summarize

    urls = expanded(descriptions)
    found = {url: summarize(url) for url in urls}
    if as_json:
        report(as_json, [{"file": url, **summary} for url, summary in found.items()])
        return
    rows = [
        {
            "file": url,
            "name": summary["name"] or "-",
            "info": summary["info"] or "-",
            "base": summary["base"],
            "shards": f"{summary['shards']:,}",
            "samples": f"{summary['samples']:,}",
            "size": size(summary["bytes"]),
            "size of a sample": size(summary["bytes"] / max(summary["samples"], 1)),
            "first shard": summary["first"],
            "last shard": summary["last"],
            "datasets": ", ".join(summary["datasets"]) or "-",
        }
        for url, summary in found.items()
    ]
    if in_lines:
        short = ("file", "name", "shards", "samples", "size", "base")
        words = ("file", "name", "base")
        console().print(table("", short, [[row[column] for column in short] for row in rows], words))
        return
    widest = max(map(len, rows[0]))
    for row in rows:
        for label, text in row.items():
            print(f"{label:>{widest}}  {printable(text)}")
        print()


@index.command()
def sample(
    description: Description,
    number: Annotated[int, Argument(metavar="N", help="Number of the sample, from 0.")] = 0,
    cat: Annotated[
        str | None, Option("-c", "--cat", metavar="FIELD", help="Write this field's bytes.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a sample of the dataset by its number: each field's size, and what it begins with."""
    from mpwds.pipeline.indexed.dataset import IndexedDataset

    with tempfile.TemporaryDirectory(prefix="mpwds-index-") as copies:
        dataset = IndexedDataset(description, cache_dir=copies)
        if not 0 <= number < len(dataset):
            raise BadParameter(f"there is no sample {number}: the dataset has {len(dataset):,}")
        found = dataset[number]
    if cat is not None:
        field = cat.removeprefix(".")
        if field not in found:
            raise BadParameter(f"--cat {cat}: the sample has {', '.join(found)}")
        sys.stdout.buffer.write(found[field])
        return
    if as_json:
        sizes = {name: {"bytes": len(value)} for name, value in found.items() if not isinstance(value, str)}
        report(as_json, {**found, **sizes})
        return
    widest = max(map(len, found))
    for name, value in found.items():
        print(f"{printable(name):<{widest}}  {_in_short(value)}")


def _in_short(value: bytes | str) -> str:
    if isinstance(value, str):
        return printable(value)
    # A character that the cut divides is left out.
    beginning = printable(codecs.getincrementaldecoder("utf-8")("replace").decode(value[:_BEGINNING]))
    return f"{len(value):>9,} bytes  {beginning}{'…' if len(value) > _BEGINNING else ''}"
