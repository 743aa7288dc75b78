"""``mpwds verify``: checks shards from end to end."""

from __future__ import annotations

from typing import Annotated

import typer

from mpwds.cli.looking.options import Jobs, Shards
from mpwds.cli.options import Json

Decode = Annotated[
    bool,
    typer.Option("--decode", help="Decode fields too: images, sound, video, text, numbers, json, arrays."),
]


def verify(shards: Shards, decode: Decode = False, jobs: Jobs = 1, json: Json = False) -> int:
    """Check shards: every header, key and checksum; and, if you ask for it, that every field can be decoded.

    Compares the checksums of tar headers and those in fields that have them (PNG, gzip, zstd, zip, Ogg ...),
    and finds keys that occur twice, samples that lack a field which 95 % of them have, and truncated shards.
    With --json, there is a line for each problem. The exit status is 1 if there is any.
    """
    from rich.console import Console

    from mpwds.cli.looking import printing
    from mpwds.cli.looking.checking import verifying
    from mpwds.cli.looking.parallel import each
    from mpwds.cli.looking.samples.sources import shards_of
    from mpwds.viewing.wording import counted

    reports = list(each(shards_of(shards), verifying.Verify(decode), jobs, "verifying"))
    verifying.add_incomplete(reports)
    problems = [problem for report in reports for problem in report.problems]
    count = sum(report.problem_count for report in reports)
    if json:
        for problem in problems:
            printing.print_json(printing.problem_object(problem))
        return int(count > 0)
    console = Console(highlight=False)
    if problems:
        console.print(printing.problem_table(problems, count))
        console.print()
    damaged = sum(report.problem_count > 0 for report in reports)
    samples = sum(report.samples for report in reports)
    verdict = f"{counted(count, 'problem')} in {counted(damaged, 'shard')}" if count else "no problems"
    console.print(f"{counted(len(reports), 'shard')}, {counted(samples, 'sample')}: {verdict}")
    if twice := verifying.keys_in_several(reports):
        console.print(f"note: keys that occur in more than one shard: {twice:,}")
    return int(count > 0)
