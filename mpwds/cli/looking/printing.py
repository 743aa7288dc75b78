"""How samples and problems are written: lines that fit the terminal, tables, and JSON."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mpwds.cli.looking.samples.reading import Problem, Sample
from mpwds.storage.streams.urls import without_credentials
from mpwds.viewing.wording import printable, size

if TYPE_CHECKING:
    from rich.table import Table

_MOST_ROWS = 50
_LEAST_WORDS = 13  # characters of a column


def print_line(line: str) -> None:
    """Prints a line that may hold a shard's data, cut to the terminal's width."""
    line = printable(line)
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        line = line if len(line) <= width else line[: width - 1] + "…"
    print(line)


def members_text(sample: Sample) -> str:
    """A sample's fields with their sizes: ``cls 1 B, jpg 3.4 kB``."""
    return ", ".join(f"{member.field} {size(member.size)}" for member in sample.members)


def as_object(sample: Sample) -> dict[str, Any]:
    """What JSON says about a sample."""
    fields = {
        member.field: {"name": member.name, "offset": member.offset, "bytes": member.size}
        for member in sample.members
    }
    return {
        "key": sample.key,
        "number": sample.number,
        "shard": without_credentials(sample.shard),
        "offset": sample.offset,
        "bytes": sample.size,
        "whole": sample.is_whole,
        "fields": fields,
    }


def problem_object(problem: Problem) -> dict[str, Any]:
    """What JSON says about a problem."""
    return {
        "shard": without_credentials(problem.shard),
        "offset": problem.offset,
        "key": problem.key,
        "field": problem.field,
        "problem": problem.what,
    }


def problem_text(problem: Problem) -> str:
    """A problem in a line."""
    shard = without_credentials(problem.shard)
    where = f', sample "{problem.key}"' if problem.key else ""
    where += f', field "{problem.field}"' if problem.field else ""
    return f"{shard}, offset {problem.offset}{where}: {problem.what}"


def warn_of(problem: Problem) -> None:
    """Prints a problem on standard error."""
    print(printable(problem_text(problem)), file=sys.stderr)


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str] = ()
) -> Table:
    """A table. Columns named in ``left`` hold words, which may be folded; others hold figures."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    found = Table(
        title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_edge=False
    )
    for place, column in enumerate(columns):
        if column in left:
            widest = max([len(column), *(len(row[place]) for row in rows)])
            found.add_column(column, overflow="fold", min_width=min(widest, _LEAST_WORDS))
        else:
            found.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        found.add_row(*(Text(printable(cell)) for cell in row))
    return found


def problem_table(problems: Sequence[Problem], total: int) -> Table:
    """The first problems in a table, with a note about the others."""
    rows = [
        (
            without_credentials(each.shard),
            f"{each.offset:,}",
            ": ".join(filter(None, (each.key, each.field))),
            each.what,
        )
        for each in problems[:_MOST_ROWS]
    ]
    columns = ("shard", "offset", "sample", "what is wrong")
    found = table("problems", columns, rows, ("shard", "sample", "what is wrong"))
    if total > len(rows):
        found.caption = f"and {total - len(rows):,} more; --json lists up to 1,000 of each shard"
    return found
