"""Arguments and options that several commands share. A dataclass of options is one parameter of a command."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, TypeVar

from typer import Argument, BadParameter, Option

T = TypeVar("T")

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_size(text: str | int) -> int:
    """The number of bytes that ``100MB``, ``1.5 GiB`` or ``4096`` stands for.

    Example:
        >>> parse_size("100MB"), parse_size("1.5GiB"), parse_size("4096")
        (100000000, 1610612736, 4096)
    """
    match = _SIZE.fullmatch(str(text).strip())
    size = 0
    if match is not None:
        step = 1024 if match[3] else 1000
        size = int(float(match[1]) * step ** " kmgt".index(match[2].lower() or " "))
    if size < 1:
        raise BadParameter(f"{text!r} is no size: write a number of bytes, such as 500MB or 1GiB")
    return size


@dataclass(frozen=True)
class Part:
    """A part of a job: every ``count``-th shard, from the one of number ``index`` on."""

    index: int
    count: int

    def of(self, items: Sequence[T]) -> Sequence[T]:
        return items[self.index :: self.count]


def parse_part(text: str) -> Part:
    """The part that ``3/64`` stands for. The first is ``0/64``, the last ``63/64``."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise BadParameter(f"{text!r} is no part: they count from 0, the first of 64 is 0/64, the last 63/64")
    return Part(int(match[1]), int(match[2]))


def tar_output(text: str) -> str:
    """The shard, or the series, that an argument names. A folder gets ``shard-%06d.tar``."""
    from mpwds.cli.outputs import shard_pattern

    try:
        return shard_pattern(text)
    except ValueError as error:
        raise BadParameter(str(error)) from None


Json = Annotated[bool, Option("--json", help="Write JSON, for programs.")]
Force = Annotated[bool, Option("--force", help="Replace files that exist.")]

# Of commands that read samples.
Shards = Annotated[
    list[str],
    Argument(
        metavar="SHARDS",
        help="Tar shards, descriptions (.json) or MDS: paths, URLs, x-{000..131}.tar, standard input (-).",
    ),
]


@dataclass(frozen=True)
class Chosen:
    """Options that choose samples and fields."""

    key: Annotated[
        list[str] | None,
        Option("--key", "-k", metavar="GLOB", help="Only samples with such a key, as 'n01/*'; repeatable."),
    ] = None
    number: Annotated[
        str,
        Option("--number", "-n", metavar="RANGES", help="Only samples of these numbers, as 10:20 or 3,7,90:"),
    ] = ""
    where: Annotated[
        str,
        Option("--where", "-w", metavar="EXPRESSION", help="Only where it holds: cls == 3 and len(jpg) > 9"),
    ] = ""
    fields: Annotated[
        str, Option("--fields", "-f", metavar="GLOBS", help="Only these fields, as jpg,cls or *.png.")
    ] = ""


Limit = Annotated[int | None, Option("--limit", min=0, metavar="N", help="At most so many samples.")]
Jobs = Annotated[int, Option("--jobs", "-j", min=1, metavar="N", help="Shards to read at the same time.")]


class Duplicates(str, Enum):
    """Ways to treat a key that a shard holds already. ``keep`` stops where the two would be side by side."""

    error = "error"
    rename = "rename"
    keep = "keep"


TarShards = Annotated[
    list[str],
    Argument(
        metavar="SHARDS", help="Paths, URLs, in-{000..099}.tar, descriptions (.json), standard input (-)."
    ),
]
Output = Annotated[
    str,
    Argument(
        metavar="OUTPUT",
        parser=tar_output,
        help="A folder, a series such as out-%06d.tar, one file x.tar, or - for standard output; also URLs.",
    ),
]


@dataclass(frozen=True)
class Resharding:
    """Arguments and options of commands that copy samples from tar shards to tar shards."""

    shards: TarShards
    output: Output
    maxcount: Annotated[int | None, Option(min=1, metavar="N", help="The most samples in a shard.")] = None
    maxsize: Annotated[
        int | None,
        Option(metavar="SIZE", parser=parse_size, help="The most bytes of a shard's archive, such as 500MB."),
    ] = None
    duplicates: Annotated[
        Duplicates,
        Option(help="What to do about a key that occurs twice in a shard: stop, write KEY-1, or leave it."),
    ] = Duplicates.error
    force: Force = False
    as_json: Json = False


@dataclass(frozen=True)
class ShardByShard:
    """Arguments and options of commands that make a tar shard of each shard."""

    shards: TarShards
    output: Output
    jobs: Annotated[
        int | None,
        Option("-j", "--jobs", min=1, metavar="N", help="Processes: 4, or twice the cluster's processors."),
    ] = None
    on_error: Annotated[
        str,
        Option(
            metavar="stop|skip|FILE.jsonl",
            help="At a sample that fails: stop; skip it with a warning; or skip it and list it in a file.",
        ),
    ] = "stop"
    journal: Annotated[
        Path | None, Option(metavar="FILE", help="Notes what was begun; by default beside the output.")
    ] = None
    force: Force = False
    as_json: Json = False


class Engine(str, Enum):
    """Engines that run a command's work on many machines."""

    ray = "ray"


@dataclass(frozen=True)
class Spilling:
    """Options of commands that hold all samples of shards."""

    memory: Annotated[
        int,
        Option(
            metavar="SIZE", parser=parse_size, show_default="1GB", help="Samples held; others go to --tmp."
        ),
    ] = 10**9
    tmp: Annotated[
        str | None, Option(metavar="DIR", help="Where to make temporary files; by default beside the output.")
    ] = None


@dataclass(frozen=True)
class Distributed:
    """Options of commands that write shards on several machines."""

    part: Annotated[
        Part | None,
        Option(
            metavar="I/N",
            parser=parse_part,
            help="Write every N-th shard, from number I on (0 to N-1); other processes write the others.",
        ),
    ] = None
    on: Annotated[
        Engine | None, Option(metavar="ray", help="Write the shards on the machines of a Ray cluster.")
    ] = None

    def own(self, items: Sequence[T]) -> Sequence[T]:
        return items if self.part is None else self.part.of(items)
