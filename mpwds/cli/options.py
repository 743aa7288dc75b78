"""Arguments and options that several commands share. A dataclass of options is one parameter of a command."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import typer

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_size(text: str | int) -> int:
    """The number of bytes that ``100MB``, ``1.5 GiB`` or ``4096`` stands for.

    Example:
        >>> parse_size("100MB"), parse_size("1.5GiB"), parse_size("4096")
        (100000000, 1610612736, 4096)
    """
    match = _SIZE.fullmatch(str(text).strip())
    size = 0
    if match is not None:
        step = 1024 if match[3] else 1000
        size = int(float(match[1]) * step ** " kmgt".index(match[2].lower() or " "))
    if size < 1:
        raise typer.BadParameter(f"{text!r} is no size: write a number of bytes, such as 500MB or 1GiB")
    return size


Json = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]
Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]

# Of commands that read samples.
Shards = Annotated[
    list[str],
    typer.Argument(
        metavar="SHARDS",
        help="Tar shards, descriptions (.json) or MDS datasets: paths, URLs, train-{000..131}.tar; - for "
        "standard input.",
    ),
]


@dataclass(frozen=True)
class Chosen:
    """Options that choose samples and fields."""

    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key", "-k", metavar="GLOB", help="Only samples with such a key, as 'n01/*'; repeatable."
        ),
    ] = None
    number: Annotated[
        str,
        typer.Option(
            "--number", "-n", metavar="RANGES", help="Only samples with these numbers, as 10:20 or 3,7,90:."
        ),
    ] = ""
    where: Annotated[
        str,
        typer.Option(
            "--where",
            "-w",
            metavar="EXPRESSION",
            help="Only samples for which this holds: cls == 3 and len(jpg) > 1000.",
        ),
    ] = ""
    fields: Annotated[
        str, typer.Option("--fields", "-f", metavar="GLOBS", help="Only these fields, as jpg,cls or *.png.")
    ] = ""


Limit = Annotated[int | None, typer.Option("--limit", min=0, metavar="N", help="At most so many samples.")]
Jobs = Annotated[
    int, typer.Option("--jobs", "-j", min=1, metavar="N", help="Shards to read at the same time.")
]


class Duplicates(str, Enum):
    """Ways to treat a key that a shard holds already.

    ``error`` stops. ``rename`` writes the sample as ``KEY-1``. ``keep`` leaves it, but stops where the two
    would be side by side, and so be read as one.
    """

    error = "error"
    rename = "rename"
    keep = "keep"


TarShards = Annotated[
    list[str],
    typer.Argument(
        metavar="SHARDS",
        help="Paths, URLs, in-{000..099}.tar, or descriptions (.json); - for standard input.",
    ),
]
Output = Annotated[
    str,
    typer.Argument(
        metavar="OUTPUT", help="A path or URL, a series such as out-%06d.tar, or - for standard output."
    ),
]


@dataclass(frozen=True)
class Resharding:
    """Arguments and options of commands that copy samples from tar shards to tar shards."""

    shards: TarShards
    output: Output
    maxcount: Annotated[int | None, typer.Option(min=1, metavar="N", help="The most samples in a shard.")] = (
        None
    )
    maxsize: Annotated[
        int | None,
        typer.Option(
            metavar="SIZE", parser=parse_size, help="The most bytes of a shard's tar archive, such as 500MB."
        ),
    ] = None
    duplicates: Annotated[
        Duplicates,
        typer.Option(
            help="What to do about a key that occurs twice in a shard: stop, write KEY-1, or leave it."
        ),
    ] = Duplicates.error
    force: Force = False
    as_json: Json = False


@dataclass(frozen=True)
class Spilling:
    """Options of commands that hold all samples of shards."""

    memory: Annotated[
        int,
        typer.Option(
            metavar="SIZE",
            parser=parse_size,
            show_default="1GB",
            help="Samples held at a time; the rest is in temporary files.",
        ),
    ] = 10**9
    tmp: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Where to make temporary files; by default beside the output."),
    ] = None
