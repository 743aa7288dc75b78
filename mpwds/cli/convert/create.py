"""``mpwds create``: makes tar shards of files, lists and datasets of other formats.

Shards are planned first (order, splits, sizes), and then each is written in one worker: their number changes
nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import operator
import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from typer import Argument, Option

from mpwds.cli import outputs
from mpwds.cli.console import complete_before, console, progress, report, table
from mpwds.cli.jobs import noted, run_jobs
from mpwds.cli.journal import resume_or_start
from mpwds.cli.options import Distributed, Engine, Force, Json, parse_size
from mpwds.cli.shards import expanded
from mpwds.errors import WrongArgument
from mpwds.storage.streams.urls import is_local, without_credentials
from mpwds.storage.writing.destinations import is_series, numbered, open_destination, write_whole
from mpwds.storage.writing.tar_members import archive_bytes
from mpwds.viewing.wording import counted, printable, size

if TYPE_CHECKING:
    from mpwds.cli.convert.finding import Samples

_REPORT_BYTES = 16 << 20
_SHARD_BYTES = 100_000_000
_LEAST_SHARDS = 16
_LEAST_SAMPLES = 10  # in each of so many
_MOST_SAMPLES = 10_000


def create(
    source: Annotated[
        str,
        Argument(
            metavar="SOURCE",
            help="A folder of files, a list (.csv .tsv .jsonl .parquet .arrow), the folder of a Hugging Face "
            "or MDS dataset, or - for a list on standard input.",
        ),
    ],
    output: Annotated[
        str,
        Argument(
            metavar="OUTPUT",
            help="Shards such as out-%06d.tar or %s-%06d.tar (for splits), a folder for them, x.tar, or -.",
        ),
    ],
    over: Distributed,
    kind: Annotated[
        str,
        Option(
            "--from",
            metavar="KIND",
            help="What SOURCE is: classes or groups (a folder), files (names, one a line), csv, jsonl, ...",
        ),
    ] = "",
    columns: Annotated[
        str, Option(metavar="COLUMN:FIELD,...", help="Fields of a list's columns: image:jpg,label:cls,*:json")
    ] = "",
    key: Annotated[str, Option(metavar="COLUMN", help="The column with the samples' keys.")] = "",
    root: Annotated[
        str | None, Option(metavar="DIR", help="Where names of files in a list start: its folder.")
    ] = None,
    split: Annotated[str, Option(metavar="NAME", help="Take only this split of SOURCE.")] = "",
    shuffle: Annotated[bool, Option("--shuffle", help="Put all samples in random order.")] = False,
    seed: Annotated[int, Option(help="Determines the order, and what --train takes.")] = 0,
    train: Annotated[
        float | None,
        Option(metavar="SHARE", help="Make train-* shards of this share, val-* of the rest."),
    ] = None,
    maxcount: Annotated[int | None, Option(min=1, metavar="N", help="Samples in a shard, at most.")] = None,
    maxsize: Annotated[
        str,
        Option(
            metavar="SIZE",
            show_default="about 100MB, at least 16 shards",
            help="Bytes of a shard's tar archive, at most; of lists and MDS, about.",
        ),
    ] = "",
    jobs: Annotated[
        int, Option("-j", "--jobs", min=0, metavar="N", help="Processes; 0: one for each processor.")
    ] = 0,
    index: Annotated[
        bool, Option("--index", help="Write a wids description beside the shards, too.")
    ] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Make tar shards of a folder of files, a list, a Hugging Face dataset, or MDS.

    Files that agree up to the first dot of their names are a sample. A folder of folders with single files is
    one of classes: samples get the class's number as `cls`, and `out.classes.json` beside shards `out-*.tar`
    holds the names. Folders named train, val or test are splits.

    The columns of a list become fields: files that they name or hold by their extension, a label `cls`, a
    text `txt`, and the others together `json`; --columns says it otherwise. Those of MDS keep their names.

    Shards depend on the source and --seed alone, not on -j, byte for byte. Each appears when it is complete.
    A run that was killed continues: write the same command again. If all is complete, it does nothing.

    Many machines make the shards together with --part 0/64 to --part 63/64, each with one of them, or with
    --on ray. Each looks at all of SOURCE, which decides what is in which shard. At the end, the same command
    without --part makes what is missing, and the --index.
    """
    from mpwds.cli.convert.finding import Wanted, find
    from mpwds.cli.convert.folders import Tree

    outputs.refuse_limits(output, maxcount or maxsize)
    if over.part is not None and index:
        raise WrongArgument("--index describes all shards: make it at the end, by a run without --part")
    told = console(outputs.is_stdout(output) or as_json)
    with contextlib.ExitStack() as ends:

        def scratch() -> str:
            if over.on is not None:
                raise WrongArgument("--on ray: copies of SOURCE would be on this machine only: use --part")
            return ends.enter_context(tempfile.TemporaryDirectory(prefix="mpwds-create-"))

        found = find(source, Wanted(scratch, kind, columns, key, root, shuffle))
        if any(isinstance(samples, Tree) for samples in found.splits.values()):
            outputs.refuse_inside(source, output)
        splits = choose(found.splits, split, train, seed)
        if shuffle:
            splits = {name: (all, shuffled(some, seed)) for name, (all, some) in splits.items()}
        patterns = {name: outputs.shard_pattern(output, name, splits) for name in splits}
        if index and any(map(outputs.has_no_place, patterns.values())):
            raise WrongArgument(f"--index: {output} is a stream, and no file can be beside it")
        most = parse_size(maxsize) if maxsize else None
        planned = {name: plan_shards(patterns[name], *splits[name], maxcount, most) for name in splits}
        shards = [shard for each in planned.values() for shard in each]
        files = _class_files(patterns, found.classes)
        descriptions = [outputs.beside(pattern, ".json") for pattern in patterns.values()] if index else []
        first, *also = [*patterns.values(), *files, *descriptions]
        for name in (first, *also):
            outputs.refuse_own_input(expanded([source]), name)
        options = [kind, columns, key, root, split, shuffle, seed, train, maxcount, maxsize]
        samples = {shard.url: shard.total for shard in shards}
        run = {"source": source, "options": options, "samples": samples, "inputs": found.digest}
        done: set[str] = set()
        if over.part is not None or outputs.path_of(first):
            began_or_resumed = resume_or_start(first, list(samples), run, force, also=also, part=over.part)
            done = ends.enter_context(began_or_resumed)
        else:
            outputs.refuse_existing([*samples, *files, *descriptions], force)
        counts = ", ".join(f"{len(samples):,} {name}".strip() for name, samples in found.splits.items())
        told.print(f"{printable(source)}: {found.text}; samples: {counts}")
        for note in found.notes:
            told.print(printable(note), style="yellow")
        if found.fields:
            told.print(table("", ("column", "field"), list(found.fields.items()), ("column", "field")))
        began = time.monotonic()
        jobs = jobs or (0 if over.on else len(os.sched_getaffinity(0)))
        written = write_shards(over.own(shards), jobs, done, over.on)
        rest = iter(written)
        for url, part in zip(descriptions, planned.values(), strict=False):
            files[url] = describe(url, list(itertools.islice(rest, len(part))))
        for url, content in files.items():
            write_whole(open_destination(url, replace=False), json.dumps(content, indent=2).encode())
    if as_json:
        values = {"shards": [vars(shard) for shard in written], "files": list(files)}
        report(as_json, values, to_stderr=outputs.is_stdout(output))
    told.print(_summary(written, time.monotonic() - began, list(files)))


def choose(
    found: Mapping[str, Samples], wanted: str, train: float | None, seed: int
) -> dict[str, tuple[Samples, Sequence[int]]]:
    """The samples of each split, and the numbers of those to write, in order."""
    if wanted:
        if wanted not in found:
            raise WrongArgument(
                f"--split {wanted}: there are {', '.join(filter(None, found)) or 'no splits'}"
            )
        found = {"": found[wanted]}
    if train is None:
        return {name: (samples, range(len(samples))) for name, samples in found.items()}
    if len(found) > 1:
        raise WrongArgument(f"--train: there are splits already, {', '.join(found)}: choose one by --split")
    (samples,) = found.values()
    first, second = split_in_two(len(samples), train, seed)
    return {"train": (samples, first), "val": (samples, second)}


def plan_shards(
    pattern: str, samples: Samples, numbers: Sequence[int], maxcount: int | None, maxsize: int | None
) -> list[Planned]:
    """The shards of a split; one, if the pattern is the name of one."""
    if not is_series(pattern):
        return [Planned(pattern, samples.part(numbers), len(numbers))]
    if maxcount or maxsize:
        parts = into_shards(numbers, samples.size_of, maxcount or 10_000, maxsize or 10**9)
    else:
        parts = into_even_shards(numbers, samples.size_of)
    return [Planned(numbered(pattern, n), samples.part(part), len(part)) for n, part in enumerate(parts)]


def split_in_two(count: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Divides the numbers below ``count`` at random: ``share`` of them, and the rest; each one at least."""
    if not 0 < share < 1:
        raise ValueError(f"the share of training samples must be between 0 and 1, got {share:g}")
    if count < 2:
        raise ValueError(f"{count} samples cannot be split in two")
    first = min(max(round(share * count), 1), count - 1)
    chosen = set(random.Random(f"{seed}/split").sample(range(count), count - first))
    return [n for n in range(count) if n not in chosen], sorted(chosen)


def shuffled(numbers: Sequence[int], seed: int) -> list[int]:
    """The numbers in an order that depends on the seed alone."""
    order = list(numbers)
    random.Random(f"{seed}/order").shuffle(order)
    return order


def into_even_shards(numbers: Sequence[int], size_of: Callable[[int], int]) -> Iterator[list[int]]:
    """Divides samples among shards of about the same size: about 100 MB, or that of 10,000 mean samples.

    There are at least 16 shards, so that each worker has some, as long as they have ten samples each.
    """
    sizes = [size_of(number) for number in numbers]
    total, samples = sum(sizes), len(sizes)
    enough = min(_LEAST_SHARDS, samples // _LEAST_SAMPLES)
    count = max(1, enough, -(-total // _SHARD_BYTES), -(-samples // _MOST_SAMPLES))
    starts = itertools.accumulate(sizes, initial=0)
    ends = itertools.accumulate(sizes)
    # A sample goes to the shard that its middle lies in.
    places = ((start + end) * count // max(2 * total, 1) for start, end in zip(starts, ends, strict=False))
    for _, shard in itertools.groupby(zip(places, numbers, strict=True), operator.itemgetter(0)):
        yield [number for _, number in shard]


def into_shards(
    numbers: Sequence[int], size_of: Callable[[int], int], maxcount: int, maxsize: float
) -> Iterator[list[int]]:
    """Divides samples among shards. A single sample may have more bytes than ``maxsize``."""
    shard: list[int] = []
    size = 0
    for number in numbers:
        of_sample = size_of(number)
        if shard and (len(shard) >= maxcount or archive_bytes(size + of_sample) > maxsize):
            yield shard
            shard, size = [], 0
        shard.append(number)
        size += of_sample
    if shard:
        yield shard


class Planned(NamedTuple):
    """A shard to write. The worker that iterates its samples reads them."""

    url: str
    samples: Iterable[dict[str, Any]]
    total: int


@dataclass(frozen=True)
class Written:
    url: str
    samples: int
    nbytes: int | None  # of their data; ``None`` if an earlier run has written them
    filesize: int | None  # ``None`` if it is not local


def write_shards(
    shards: Sequence[Planned], jobs: int, done: Collection[str] = (), engine: Engine | None = None
) -> list[Written]:
    """Writes shards in ``jobs`` processes, or in this one if there is only one or one shard.

    A shard appears under its name when it is complete; those in ``done`` are already. Errors, and Ctrl-C,
    leave the complete ones.
    """
    written = {
        number: Written(shard.url, shard.total, None, _filesize(shard.url))
        for number, shard in enumerate(shards)
        if shard.url in done
    }
    left = [(number, shard) for number, shard in enumerate(shards) if number not in written]
    before = sum(shard.samples for shard in written.values())
    total = sum(shard.total for shard in shards)
    workers = min(jobs, len(left))
    workers = workers if workers > 1 or engine else 0
    with progress(total, before) as advance:
        # The library of cloud storage does not survive a fork.
        start = "fork" if all(is_local(shard.url) for shard in shards) else "forkserver"
        options: dict[str, Any] = {"in_order": False, "start_method": start}
        for number, samples, shard in run_jobs(left, _write, workers, engine, **options):
            advance(samples, "writing")
            if shard is not None:
                written[number] = shard
    return [written[number] for number in range(len(shards))]


def _write(task: tuple[int, Planned]) -> Iterator[tuple[int, int, Written | None]]:
    """Writes a shard; tells in between how many samples it wrote since it last told."""
    from mpwds.storage.writing.tar_writer import TarWriter

    number, (url, samples, _) = task
    keys: set[str] = set()
    told, untold, nbytes = 0, 0, 0
    with (
        TarWriter(url, encoder=False, mtime=0, keep_meta=True, replace=False) as sink,
        noted(f"while writing {without_credentials(url)}"),
    ):
        for sample in samples:
            key = sample["__key__"]
            if key in keys:
                raise ValueError(f"the key {key!r} occurs twice")
            keys.add(key)
            nbytes += sink.write(sample)
            untold += 1
            if nbytes - told >= _REPORT_BYTES:
                yield number, untold, None
                told, untold = nbytes, 0
    yield number, untold, Written(url, len(keys), nbytes, _filesize(url))


def _filesize(url: str) -> int | None:
    return os.path.getsize(path) if (path := outputs.path_of(url)) else None


def _class_files(patterns: Mapping[str, str], classes: Mapping[str, Iterable[str]]) -> dict[str, Any]:
    """The files that name classes, and their contents: those of each series, beside its shards.

    There are none beside streams: a command with another ending would be another command.
    """
    if any(map(outputs.has_no_place, patterns.values())):
        return {}
    names = {field: f".{field}.classes.json" if len(classes) > 1 else ".classes.json" for field in classes}
    return {
        outputs.beside(pattern, names[field]): list(classes[field])
        for pattern in patterns.values()
        for field in classes
    }


def describe(url: str, shards: Sequence[Written]) -> dict[str, Any]:
    """The wids description of shards that are in the same folder."""
    shardlist: list[dict[str, Any]] = []
    for shard in shards:
        shardlist.append({"url": shard.url.rpartition("/")[2], "nsamples": shard.samples})
        if shard.filesize is not None:
            shardlist[-1]["filesize"] = shard.filesize
    name = os.path.splitext(os.path.basename(url))[0]
    return {"wids_version": 1, "name": name, "shardlist": shardlist}


def _summary(written: Sequence[Written], seconds: float, files: Sequence[str]) -> str:
    now = [shard for shard in written if shard.nbytes is not None]
    samples, nbytes = sum(shard.samples for shard in now), sum(shard.nbytes or 0 for shard in now)
    each = itertools.groupby((shard.url for shard in written), lambda url: re.sub(r"\d+", "", url))
    series = [list(urls) for _, urls in each]
    names = ", ".join(" to ".join(dict.fromkeys((urls[0], urls[-1]))) for urls in series)
    also = f"; also {', '.join(files)}" if files else ""
    if written and not now:
        return f"no shard to write: {counted(len(written), 'shard')} complete before: {names}{also}"
    what = f"{counted(samples, 'sample')} ({size(nbytes)}, {seconds:.1f} s)"
    shards = f"{counted(len(now), 'shard')}{complete_before(len(written) - len(now))}"
    return f"wrote {what} to {shards}: {names}{also}"
