"""``mpwds info``: what shards hold, in all."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from mpwds.cli.looking.options import Jobs, Shards
from mpwds.cli.options import Json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mpwds.cli.looking.showing.figures import ShardFigures

_LOOKS = 10  # samples of each shard
_MOST_SHARDS = 20

Shapes = Annotated[
    bool,
    typer.Option(
        "--shapes", help=f"Look into every sample for kinds and shapes, not {_LOOKS} of each shard."
    ),
]


def info(shards: Shards, shapes: Shapes = False, jobs: Jobs = 1, json: Json = False) -> int:
    """Sum up shards: samples and bytes; fields with kinds, shapes, values and sizes; damaged places.

    Of local shards, it reads the headers and the first samples, unless you ask for all --shapes. With --json,
    there is a line for each shard and a last one for all. The exit status is 1 if a shard is damaged;
    `mpwds verify` looks at more.
    """
    from rich.console import Console

    from mpwds.cli.looking import printing
    from mpwds.cli.looking.parallel import each
    from mpwds.cli.looking.samples.sources import shards_of
    from mpwds.cli.looking.showing.figures import ShardFigures, SumUp
    from mpwds.cli.outputs import report
    from mpwds.storage.streams.urls import without_credentials
    from mpwds.viewing.wording import counted, size

    found = shards_of(shards)
    total = ShardFigures("all shards")
    rows: list[tuple[str, ...]] = []
    for figures in each(found, SumUp(sys.maxsize if shapes else _LOOKS), jobs, "reading shards"):
        total.merge(figures)
        name = without_credentials(figures.name)
        if json:
            report(json, {"shard": name, **figures.as_dict()})
        elif len(rows) < _MOST_SHARDS:
            damaged = str(figures.problem_count or "")
            rows.append((name, f"{figures.samples:,}", size(figures.nbytes), damaged))
    if json:
        problems = [printing.problem_object(problem) for problem in total.problems]
        report(json, {"shards": len(found), **total.as_dict(), "first_problems": problems})
        return int(total.problem_count > 0)
    console = Console(highlight=False)
    by_shard = printing.table("shards", ("shard", "samples", "data", "damaged places"), rows, ("shard",))
    if len(found) > len(rows):
        by_shard.caption = f"and {len(found) - len(rows):,} more shards; --json lists all of them"
    for part in (by_shard, _field_table(total)):
        console.print(part)
        console.print()
    if total.problems:
        console.print(printing.problem_table(total.problems, total.problem_count))
        console.print()
    counts = f"{counted(len(found), 'shard')}, {counted(total.samples, 'sample')}"
    console.print(f"{counts}, {size(total.nbytes)} of data")
    return int(total.problem_count > 0)


def _field_table(total: ShardFigures) -> RenderableType:
    from mpwds.cli.looking.printing import table
    from mpwds.viewing.wording import size

    rows = [
        (
            name,
            f"{each.samples:,}",
            *(size(nbytes) for nbytes in (each.least, each.mean, each.largest)),
            ", ".join(filter(None, (each.kind_text, each.shape_text))) or "(none looked at: add --shapes)",
        )
        for name, each in sorted(total.fields.items())
    ]
    return table(
        "fields", ("field", "samples", "least", "mean", "largest", "holds"), rows, ("field", "holds")
    )
