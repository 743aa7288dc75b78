"""``mpwds repair``: copies of shards without what is damaged."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from mpwds.cli.looking.options import Jobs, Shards
from mpwds.cli.looking.verify import Decode
from mpwds.cli.options import Force, Json
from mpwds.storage.streams.urls import is_local

if TYPE_CHECKING:
    from mpwds.cli.looking.checking.repairing import Copy
    from mpwds.cli.looking.samples.reading import Problem

_MOST_KEYS = 8  # in a cell

Output = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="TARGET",
        help="A folder for the copies; of a single shard, a file x.tar or -.",
    ),
]
InPlace = Annotated[
    bool, typer.Option("--in-place", help="Replace damaged shards; they are kept as NAME.damaged.")
]
KeepIncomplete = Annotated[
    bool,
    typer.Option("--keep-incomplete", help="Keep samples that lack a field which nearly all others have."),
]


def repair(
    shards: Shards,
    output: Output = "",
    in_place: InPlace = False,
    keep_incomplete: KeepIncomplete = False,
    decode: Decode = False,
    force: Force = False,
    jobs: Jobs = 1,
    json: Json = False,
) -> int:
    """Write a copy of shards without the samples that `mpwds verify` finds damaged; say what is left out.

    Of two samples with the same key, the first one stays. All else is copied as it is, and so are shards
    without damage. Shards are read twice. The exit status is 1 if a shard could not be read at all.
    """
    if bool(output) == in_place:
        raise typer.BadParameter(
            "say where the copies go with --output, or replace damaged shards with --in-place"
        )
    from mpwds.cli.looking.checking import verifying
    from mpwds.cli.looking.checking.repairing import Copy, Repair
    from mpwds.cli.looking.parallel import each
    from mpwds.cli.looking.samples.sources import TarShard, shards_of
    from mpwds.cli.outputs import report

    with ExitStack() as stack:
        given = shards_of([_saved(stack) if url == "-" else url for url in shards])
        if not all(isinstance(shard, TarShard) for shard in given):
            raise typer.BadParameter("repair mends tar shards; `mpwds convert` writes an MDS dataset again")
        names = [shard.name for shard in given]
        if in_place and not all(map(is_local, names)):
            raise typer.BadParameter("--in-place is for local shards: say --output for those at URLs")
        targets = [""] * len(given) if in_place else _targets(output, names, force)
        reports = list(each(given, verifying.Verify(decode), jobs, "verifying"))
        required = frozenset[str]() if keep_incomplete else verifying.usual_fields(reports)
        if not keep_incomplete:
            verifying.add_incomplete(reports)
        copies = [
            Copy(shard, target, found.problem_count > 0)
            for shard, target, found in zip(given, targets, reports, strict=True)
            if found.is_readable and (found.problem_count or not in_place)
        ]
        done = list(each(copies, Repair(decode, required, force), jobs, "writing"))
    if json:
        for copy in done:
            report(json, copy.as_dict())
    elif output != "-":
        _print(done, [problem for found in reports for problem in found.problems])
    return int(not all(found.is_readable for found in reports))


def _saved(stack: ExitStack) -> str:
    """A temporary file with what comes from standard input, which could not be read twice."""
    file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="mpwds-repair-"))  # noqa: SIM115
    shutil.copyfileobj(sys.stdin.buffer, file)
    file.flush()
    return file.name


def _targets(output: str, names: Sequence[str], force: bool) -> list[str]:
    """Where the copies go, in folders that exist. Raises ``FileExistsError`` unless ``force``."""
    from mpwds.cli.outputs import is_file, make_folders, refuse_existing

    if len(names) == 1 and is_file(output):
        targets = [output]
    else:
        targets = [os.path.join(output, name.rpartition("/")[2]) for name in names]
        if len({*targets}) < len(targets):
            raise typer.BadParameter("two shards have the same name: repair them one by one")
    refuse_existing(targets, force)
    make_folders(targets)
    return targets


def _print(copies: Sequence[Copy], problems: Sequence[Problem]) -> None:
    from rich.console import Console

    from mpwds.cli.looking import printing
    from mpwds.viewing.wording import counted

    console = Console(highlight=False)
    if problems:
        console.print(printing.problem_table(problems, len(problems)))
        console.print()
    rows = [
        (copy.name, f"{copy.kept:,}", f"{copy.left_out:,}", " ".join(copy.left_out_keys[:_MOST_KEYS]))
        for copy in copies
        if copy.damaged
    ]
    if rows:
        columns = ("repaired shard", "samples", "left out", "the first of those")
        console.print(printing.table("", columns, rows, ("repaired shard", "the first of those")))
        console.print()
    left_out = sum(copy.left_out for copy in copies)
    wrote = f"wrote {counted(len(copies), 'shard')}, {len(rows):,} of them repaired"
    console.print(f"{wrote}; left out {counted(left_out, 'sample')}")
