"""``mpwds ls``: the samples of shards, with their fields and sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mpwds.cli.looking.options import Fields, Keys, Limit, Numbers, Shards, Where
from mpwds.cli.options import Json

if TYPE_CHECKING:
    from mpwds.cli.looking.samples.reading import Problem

Long = Annotated[bool, typer.Option("--long", "-l", help="A line for each field: offset, bytes, name.")]


def ls(
    shards: Shards,
    long: Long = False,
    key: Keys = None,
    number: Numbers = "",
    where: Where = "",
    fields: Fields = "",
    limit: Limit = None,
    json: Json = False,
) -> int:
    """List the samples of shards: number, bytes, key, and fields with their bytes.

    Damaged places are listed where they are, and the exit status is 1 then. Of local shards, only headers
    are read, and the fields that --where needs.
    """
    from mpwds.cli.looking import printing
    from mpwds.cli.looking.samples.choosing import make_choice, read_chosen
    from mpwds.cli.looking.samples.reading import no_data
    from mpwds.cli.looking.samples.sources import shards_of
    from mpwds.cli.outputs import report
    from mpwds.storage.streams.urls import without_credentials
    from mpwds.viewing.wording import size

    choice = make_choice(key, number, where, fields, limit)
    damaged = False

    def report_problem(problem: Problem) -> None:
        nonlocal damaged
        damaged = True
        if json:
            report(json, printing.problem_object(problem))
        else:
            printing.print_line(f"damaged: {printing.problem_text(problem)}")

    shard = None
    for sample in read_chosen(shards_of(shards), choice, no_data, report_problem):
        sample.members = choice.members(sample)
        if json:
            report(json, printing.as_object(sample))
            continue
        if sample.shard != shard:
            shard = sample.shard
            printing.print_line(f"{without_credentials(shard)}:")
        note = "" if sample.is_whole else "  (incomplete: the shard is damaged here)"
        text = "" if long else f"  {printing.members_text(sample)}"
        printing.print_line(f"{sample.number:>8} {size(sample.size):>8}  {sample.key}{text}{note}")
        for member in sample.members if long else ():
            printing.print_line(f"{member.offset:>13} {member.size:>10}  {member.name}")
    return int(damaged)
