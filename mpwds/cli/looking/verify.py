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
    With --json, there is a line for each problem, and a last one with totals. The exit status is 1 if there
    is any problem.
    """
    from rich.console import Console

    from mpwds.cli.looking import printing
    from mpwds.cli.looking.checking import verifying
    from mpwds.cli.looking.parallel import each as of_each
    from mpwds.cli.looking.samples.sources import shards_of
    from mpwds.cli.outputs import report
    from mpwds.viewing.wording import counted

    reports = list(of_each(shards_of(shards), verifying.Verify(decode), jobs, "verifying"))
    verifying.add_incomplete(reports)
    problems = [problem for each in reports for problem in each.problems]
    count = sum(each.problem_count for each in reports)
    damaged = sum(each.problem_count > 0 for each in reports)
    samples = sum(each.samples for each in reports)
    twice = verifying.keys_in_several(reports)
    totals = {"shards": len(reports), "samples": samples, "problems": count, "damaged_shards": damaged}
    totals["keys_in_several_shards"] = twice
    if json:
        for problem in problems:
            report(json, printing.problem_object(problem))
        report(json, totals)
        return int(count > 0)
    console = Console(highlight=False)
    if problems:
        console.print(printing.problem_table(problems, count))
        console.print()
    verdict = f"{counted(count, 'problem')} in {counted(damaged, 'shard')}" if count else "no problems"
    console.print(f"{counted(len(reports), 'shard')}, {counted(samples, 'sample')}: {verdict}")
    if twice:
        console.print(f"note: keys that occur in more than one shard: {twice:,}")
    return int(count > 0)
