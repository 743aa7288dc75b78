"""``mpwds ls``, ``cat``, ``info``, ``verify`` and ``repair``: commands that read shards."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

from typer import BadParameter, Option

from mpwds.cli.app import Invocation
from mpwds.cli.console import console, report, table
from mpwds.cli.jobs import each
from mpwds.cli.options import Chosen, Force, Jobs, Json, Limit, Shards
from mpwds.cli.outputs import (
    dashed,
    is_file,
    is_own,
    is_stdout,
    make_folders,
    path_of,
    refuse_existing,
    refuse_own_input,
)
from mpwds.storage.streams.gopen import gopen
from mpwds.storage.streams.urls import is_local, last_part, local_path, without_credentials
from mpwds.storage.writing.destinations import remove_partial
from mpwds.viewing.wording import counted, printable, size

if TYPE_CHECKING:
    from mpwds.cli.inspect.checking import Copy
    from mpwds.cli.inspect.shards import Problem, Sample

_LOOKS = 10  # samples of each shard
_MOST_SHARDS = 20
_MOST_KEYS = 8  # in a cell

Decode = Annotated[
    bool, Option("--decode", help="Decode fields too: images, sound, video, text, numbers, json, arrays.")
]
Target = Annotated[
    str,
    Option("--output", "-o", metavar="TARGET", help="A folder for copies; of one shard, a file x.tar or -."),
]
InPlace = Annotated[bool, Option("--in-place", help="Replace damaged shards; they are kept as NAME.damaged.")]
KeepIncomplete = Annotated[
    bool, Option("--keep-incomplete", help="Keep samples that lack a field which nearly all others have.")
]


def ls(
    shards: Shards,
    chosen: Chosen,
    long: Annotated[bool, Option("--long", "-l", help="A line for each field: offset, bytes, name.")] = False,
    limit: Limit = None,
    as_json: Json = False,
) -> int:
    """List the samples of shards: number, bytes, key, and fields with their bytes.

    Damaged places are listed where they are, and the exit status is 1 then. Of local shards, only headers
    are read, and the fields that --where needs.
    """
    from mpwds.cli.inspect.selection import SampleSelection

    samples = SampleSelection(shards, chosen, limit)

    def report_problem(problem: Problem) -> None:
        samples.problems += 1
        if as_json:
            report(as_json, problem.as_dict())
        else:
            _print_line(f"damaged: {problem}")

    shard = None
    for sample in samples.read(lambda *_: False, report_problem):
        if as_json:
            report(as_json, sample.as_dict())
            continue
        if sample.shard != shard:
            shard = sample.shard
            _print_line(f"{without_credentials(shard)}:")
        note = "" if sample.is_whole else "  (incomplete: the shard is damaged here)"
        members = ", ".join(f"{name} {size(member.size)}" for name, member in sample.members.items())
        text = "" if long else f"  {members}"
        _print_line(f"{sample.number:>8} {size(sample.size):>8}  {sample.key}{text}{note}")
        for member in sample.members.values() if long else ():
            _print_line(f"{member.offset:>13} {member.size:>10}  {member.name}")
    return int(samples.problems > 0)


def _print_line(line: str) -> None:
    """Prints a line that may hold a shard's data, cut to the terminal's width."""
    line = printable(line)
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        line = line if len(line) <= width else line[: width - 1] + "…"
    print(line)


def cat(
    shards: Shards,
    chosen: Chosen,
    limit: Limit = None,
    lines: Annotated[bool, Option("--lines", help="End each field with a newline.")] = False,
    as_json: Json = False,
    tar: Annotated[
        bool, Option("--tar", help="Write a tar shard of the samples, to a pipe or a file.")
    ] = False,
    whole: Annotated[
        bool, Option("--shards", help="Join whole shards into one, as `mpwds merge SHARDS... -` does.")
    ] = False,
) -> int:
    """Write fields of shards to standard output, one after the other, as they are stored.

    With --json, each sample is a line, with text, numbers and structures decoded and other fields in base64;
    with --tar, the samples become a shard. Samples that damage may have made incomplete are left out, and
    named on standard error; the exit status is 1 then.
    """
    if as_json + tar + lines + whole > 1:
        raise BadParameter("--json, --tar, --lines and --shards exclude each other")
    if whole:
        if any(vars(chosen).values()) or limit is not None:
            raise BadParameter("--shards joins whole shards: choose samples and fields with --tar")
        return Invocation().run(["merge", "--", *shards, "-"])
    from mpwds.cli.inspect.describing import as_json_value
    from mpwds.cli.inspect.selection import SampleSelection

    samples = SampleSelection(shards, chosen, limit)
    try:
        if as_json:
            for sample in samples:
                values = {name: as_json_value(name, data) for name, data in sample.data().items()}
                report(as_json, {"__key__": sample.key, **values})
        elif tar:
            _write_tar(samples, sys.stdout.buffer)
        else:
            _write_fields(samples, sys.stdout.buffer, b"\n" if lines else b"")
        sys.stdout.flush()
    except OSError as error:
        if error.errno == errno.ENOSPC:
            error.filename = "standard output"
        raise
    return int(samples.problems > 0)


def _write_fields(samples: Iterable[Sample], stream: BinaryIO, end: bytes) -> None:
    """Writes the fields as they are stored. A terminal gets text alone, without control characters."""
    is_terminal = stream.isatty()
    for sample in samples:
        for name, member in sample.members.items():
            data = member.data or b""
            stream.write(_for_terminal(sample, name, data) if is_terminal else data)
            stream.write(end)


def _for_terminal(sample: Sample, field: str, data: bytes) -> bytes:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ValueError(
            f'field "{field}" of sample "{sample.key}" is not text: choose others with --fields, '
            "take --json, or redirect the output to a file"
        ) from None
    return printable(text, keep="\n\t").encode()


def _write_tar(samples: Iterable[Sample], stream: BinaryIO) -> None:
    """Writes a tar archive of the samples; members of tar shards stay as they are."""
    from mpwds.errors import ShardError
    from mpwds.storage.writing.tar_writer import TarWriter

    if stream.isatty():
        raise ValueError("a tar archive is nothing for a terminal: redirect the output to a file or a pipe")
    last_key = None
    with TarWriter(stream, encoder=False, keep_meta=True, mtime=0) as sink:
        for sample in samples:
            if sample.key == last_key:
                raise ShardError(
                    f'sample "{sample.key}" of {without_credentials(sample.shard)}: the sample before it has '
                    "the same key, so the two would be read as one; `mpwds merge --duplicates rename` gives "
                    "it another one"
                )
            last_key = sample.key
            members = sample.members.values()
            if all(member.header for member in members):
                sink.write_blocks(b"".join(member.blocks for member in members))
            else:
                sink.write({"__key__": sample.key, **sample.data()})


def info(
    shards: Shards,
    shapes: Annotated[
        bool,
        Option("--shapes", help=f"Look into all samples for kinds and shapes, not {_LOOKS} of a shard."),
    ] = False,
    jobs: Jobs = 1,
    as_json: Json = False,
) -> int:
    """Sum up shards: samples and bytes; fields with kinds, shapes, values and sizes; damaged places.

    Of local shards, it reads the headers and the first samples, unless you ask for all --shapes. With --json,
    there is a line for each shard and a last one for all. The exit status is 1 if a shard is damaged;
    `mpwds verify` looks at more.
    """
    from mpwds.cli.inspect.describing import ShardFigures, sum_up
    from mpwds.cli.inspect.shards import problem_table, shards_of

    found = shards_of(shards)
    total = ShardFigures("all shards")
    rows: list[tuple[str, ...]] = []
    look_into = partial(sum_up, looks=sys.maxsize if shapes else _LOOKS)
    jobs = 1 if any(map(is_own, shards)) else jobs
    for figures in each(found, look_into, jobs, "reading shards"):
        total.merge(figures)
        name = without_credentials(figures.name)
        if as_json:
            report(as_json, {"shard": name, **figures.as_dict()})
        elif len(rows) < _MOST_SHARDS:
            damaged = str(figures.problem_count or "")
            rows.append((name, f"{figures.samples:,}", size(figures.nbytes), damaged))
    if as_json:
        problems = [problem.as_dict() for problem in total.problems]
        report(as_json, {"shards": len(found), **total.as_dict(), "first_problems": problems})
        return int(total.problem_count > 0)
    by_shard = table("shards", ("shard", "samples", "data", "damaged places"), rows, ("shard",))
    if len(found) > len(rows):
        by_shard.caption = f"and {len(found) - len(rows):,} more shards; --json lists all of them"
    of_fields = []
    for name, field in sorted(total.fields.items()):
        sizes = map(size, (field.least, field.mean, field.largest))
        holds = ", ".join(filter(None, (field.kind_text, field.shape_text)))
        of_fields.append((name, f"{field.samples:,}", *sizes, holds or "(none looked at: add --shapes)"))
    columns = ("field", "samples", "least", "mean", "largest", "holds")
    tables = [by_shard, table("fields", columns, of_fields, ("field", "holds"))]
    tables += [problem_table(total.problems, total.problem_count)] if total.problems else []
    for part in tables:
        console().print(part, "", sep="\n")
    counts = f"{counted(len(found), 'shard')}, {counted(total.samples, 'sample')}"
    print(f"{counts}, {size(total.nbytes)} of data")
    return int(total.problem_count > 0)


def verify(shards: Shards, decode: Decode = False, jobs: Jobs = 1, as_json: Json = False) -> int:
    """Check shards: every header, key and checksum; and, if you ask for it, that every field can be decoded.

    Compares the checksums of tar headers and those in fields that have them (PNG, gzip, zstd, zip, Ogg ...),
    and finds keys that occur twice, samples that lack a field which 95 % of them have, and truncated shards.
    With --json, there is a line for each problem, and a last one with totals. The exit status is 1 if there
    is any problem.
    """
    from mpwds.cli.inspect.checking import add_incomplete, keys_in_several, verify_shard
    from mpwds.cli.inspect.shards import problem_table, shards_of

    jobs = 1 if any(map(is_own, shards)) else jobs
    reports = list(each(shards_of(shards), partial(verify_shard, decode=decode), jobs, "verifying"))
    add_incomplete(reports)
    problems = [problem for found in reports for problem in found.problems]
    count = sum(found.problem_count for found in reports)
    damaged = sum(found.problem_count > 0 for found in reports)
    samples = sum(found.samples for found in reports)
    twice = keys_in_several(reports)
    if as_json:
        for problem in problems:
            report(as_json, problem.as_dict())
        totals = {"shards": len(reports), "samples": samples, "problems": count, "damaged_shards": damaged}
        report(as_json, {**totals, "keys_in_several_shards": twice})
        return int(count > 0)
    if problems:
        console().print(problem_table(problems, count), "", sep="\n")
    verdict = f"{counted(count, 'problem')} in {counted(damaged, 'shard')}" if count else "no problems"
    print(f"{counted(len(reports), 'shard')}, {counted(samples, 'sample')}: {verdict}")
    if twice:
        print(f"note: keys that occur in more than one shard: {twice:,}")
    return int(count > 0)


def repair(
    shards: Shards,
    output: Target = "",
    in_place: InPlace = False,
    keep_incomplete: KeepIncomplete = False,
    decode: Decode = False,
    force: Force = False,
    jobs: Jobs = 1,
    as_json: Json = False,
) -> int:
    """Write a copy of shards without the samples that `mpwds verify` finds damaged; say what is left out.

    Of two samples with the same key, the first one stays. All else is copied as it is, and so are shards
    without damage. Shards are read twice. The exit status is 1 if a shard could not be read at all.
    """
    if bool(output) == in_place:
        raise BadParameter("say where the copies go with --output, or replace damaged shards with --in-place")
    output = dashed(output)
    if any(map(_is_read_once, shards)) and (in_place or shards[1:] or not is_file(output)):
        raise BadParameter("a stream is one shard, whose copy needs a name: -o x.tar, or -o -")
    from mpwds.cli.inspect.checking import Copy, Repair, add_incomplete, usual_fields, verify_shard
    from mpwds.cli.inspect.shards import TarShard, shards_of

    with ExitStack() as stack:
        given = shards_of([_saved(url, stack) if _is_read_once(url) else url for url in shards])
        if not all(isinstance(shard, TarShard) for shard in given):
            raise BadParameter("repair mends tar shards; `mpwds convert` writes an MDS dataset again")
        names = [shard.name for shard in given]
        if in_place and not all(map(is_local, names)):
            raise BadParameter("--in-place is for local shards: say --output for those at URLs")
        targets = [""] * len(given) if in_place else _targets(output, names, force)
        if in_place:
            remove_partial(map(local_path, names))
        for target in filter(None, targets):
            refuse_own_input(names, target)
        reports = list(each(given, partial(verify_shard, decode=decode), jobs, "verifying"))
        required = frozenset[str]() if keep_incomplete else usual_fields(reports)
        if not keep_incomplete:
            add_incomplete(reports)
        copies = [
            Copy(shard, target, found.problem_count > 0)
            for shard, target, found in zip(given, targets, reports, strict=True)
            if found.is_readable and (found.problem_count or not in_place)
        ]
        done = list(each(copies, Repair(decode, required, force), jobs, "writing"))
    if as_json:
        for copy in done:
            report(as_json, copy.as_dict(), to_stderr=is_stdout(output))
    elif not is_stdout(output):
        _print(done, [problem for found in reports for problem in found.problems])
    return int(not all(found.is_readable for found in reports))


def _is_read_once(url: str) -> bool:
    path = path_of(url)
    return is_own(url) or (path is not None and Path(path).is_fifo())


def _saved(url: str, stack: ExitStack) -> str:
    """A temporary file with what comes from a stream, which could not be read twice."""
    file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="mpwds-repair-"))  # noqa: SIM115
    with gopen(url) as stream:
        shutil.copyfileobj(stream, file)
    file.flush()
    return file.name


def _targets(output: str, names: Sequence[str], force: bool) -> list[str]:
    if len(names) == 1 and is_file(output):
        targets = [output]
    elif is_stdout(output):
        raise BadParameter("standard output takes one copy: name a folder for those of several shards")
    else:
        files = (last_part(name) if is_local(name) else last_part(name).partition("?")[0] for name in names)
        targets = [os.path.join(output, file) for file in files]
        if len({*targets}) < len(targets):
            raise BadParameter("two shards have the same name: repair them one by one")
    refuse_existing(targets, force)
    make_folders(targets)
    return targets


def _print(copies: Sequence[Copy], problems: Sequence[Problem]) -> None:
    from mpwds.cli.inspect.shards import problem_table

    if problems:
        console().print(problem_table(problems, len(problems)), "", sep="\n")
    rows = [
        (copy.name, f"{copy.kept:,}", f"{copy.left_out:,}", " ".join(copy.left_out_keys[:_MOST_KEYS]))
        for copy in copies
        if copy.damaged
    ]
    if rows:
        columns = ("repaired shard", "samples", "left out", "the first of those")
        left = ("repaired shard", "the first of those")
        console().print(table("", columns, rows, left), "", sep="\n")
    left_out = sum(copy.left_out for copy in copies)
    wrote = f"wrote {counted(len(copies), 'shard')}, {len(rows):,} of them repaired"
    print(f"{wrote}; left out {counted(left_out, 'sample')}")
