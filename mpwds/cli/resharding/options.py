"""Arguments and options that the commands from shards to shards share."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from mpwds.cli.options import parse_size


class Duplicates(str, Enum):
    """What to do about a key that a shard holds already.

    ``error`` stops. ``rename`` writes the sample as ``KEY-1``. ``keep`` leaves it, but stops where the two
    would be side by side, and so be read as one.
    """

    error = "error"
    rename = "rename"
    keep = "keep"


Shards = Annotated[
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
MaxCount = Annotated[
    int | None, typer.Option("--maxcount", min=1, metavar="N", help="The most samples in a shard.")
]
MaxSize = Annotated[
    int | None,
    typer.Option(
        "--maxsize",
        metavar="SIZE",
        parser=parse_size,
        help="The most bytes of a shard's tar archive, such as 500MB.",
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
OnDuplicates = Annotated[
    Duplicates,
    typer.Option(help="What to do about a key that occurs twice in a shard: stop, write KEY-1, or leave it."),
]
