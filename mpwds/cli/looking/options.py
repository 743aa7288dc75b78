"""Arguments and options that the commands about shards share."""

from __future__ import annotations

from typing import Annotated

import typer

Shards = Annotated[
    list[str],
    typer.Argument(
        metavar="SHARDS",
        help="Tar shards, descriptions (.json) or MDS datasets: paths, URLs, train-{000..131}.tar; - for "
        "standard input.",
    ),
]
Keys = Annotated[
    list[str] | None,
    typer.Option("--key", "-k", metavar="GLOB", help="Only samples with such a key, as 'n01/*'; repeatable."),
]
Numbers = Annotated[
    str,
    typer.Option(
        "--number", "-n", metavar="RANGES", help="Only samples with these numbers, as 10:20 or 3,7,90:."
    ),
]
Where = Annotated[
    str,
    typer.Option(
        "--where",
        "-w",
        metavar="EXPRESSION",
        help="Only samples for which this holds: cls == 3 and len(jpg) > 1000.",
    ),
]
Fields = Annotated[
    str, typer.Option("--fields", "-f", metavar="GLOBS", help="Only these fields, as jpg,cls or *.png.")
]
Limit = Annotated[int | None, typer.Option("--limit", min=0, metavar="N", help="At most so many samples.")]
Jobs = Annotated[
    int, typer.Option("--jobs", "-j", min=1, metavar="N", help="Shards to read at the same time.")
]
