"""Arguments and options that the commands from shards to shards share."""

from __future__ import annotations

import re
from enum import Enum
from typing import Annotated

import typer

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


class Duplicates(str, Enum):
    """What to do about a key that a shard holds already.

    ``error`` stops. ``rename`` writes the sample as ``KEY-1``. ``keep`` leaves it, but stops where the two
    would be side by side, and so be read as one.
    """

    error = "error"
    rename = "rename"
    keep = "keep"


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


Shards = Annotated[
    list[str],
    typer.Argument(
        metavar="SHARD...",
        help="Paths, URLs, in-{000..099}.tar, or descriptions (.json); - for standard input.",
    ),
]
Output = Annotated[
    str,
    typer.Argument(
        metavar="OUTPUT", help="A path or URL, a series such as out-%06d.tar, or - for standard output."
    ),
]
MaxCount = Annotated[int | None, typer.Option("--maxcount", min=1, help="The most samples in a shard.")]
MaxSize = Annotated[
    int | None,
    typer.Option(
        "--maxsize", metavar="SIZE", parser=parse_size, help="The most bytes in a shard, such as 500MB."
    ),
]
Memory = Annotated[
    int,
    typer.Option(
        "--memory",
        metavar="SIZE",
        parser=parse_size,
        show_default="1GB",
        help="Samples held at a time; the rest is in temporary files.",
    ),
]
Temporary = Annotated[
    str | None,
    typer.Option("--tmp", metavar="DIR", help="Where to make temporary files; by default beside the output."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace shards that exist.")]
OnDuplicates = Annotated[
    Duplicates,
    typer.Option(
        help="What to do about a key that occurs twice in a shard: stop, write KEY-1, or leave it.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Write the figures as JSON, for programs.")]
