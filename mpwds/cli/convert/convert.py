"""``mpwds convert``: between tar shards, MDS datasets and record files."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from typer import Argument, BadParameter, Option

from mpwds.cli import outputs
from mpwds.cli.console import complete_before, console, progress, report, table
from mpwds.cli.jobs import add_up, noted
from mpwds.cli.journal import resume_or_start
from mpwds.cli.options import Distributed, Force, Json, parse_size
from mpwds.errors import WrongArgument
from mpwds.pipeline.sources.formats import FORMATS, KEY, Format, StoredSamples, find_format, format_named
from mpwds.storage.streams.gopen import exists
from mpwds.storage.streams.urls import without_credentials
from mpwds.viewing.wording import counted, size

if TYPE_CHECKING:
    from rich.table import Table

    from mpwds.cli.encodings import Plan
    from mpwds.storage.writing.sinks import Sink, WriteOptions

_FORMATS = "tar, mds (version 2), mds1 (composer's), msgpack or cbor"


def convert(
    source: Annotated[
        str,
        Argument(
            metavar="SOURCE", help="Tar shards, MDS (folder or URL), record files, a description, or -."
        ),
    ],
    destination: Annotated[
        str,
        Argument(metavar="OUTPUT", help="Shards (out-%06d.tar or .msgpack), one file, -, or a folder."),
    ],
    over: Distributed,
    from_: Annotated[str, Option("--from", metavar="FORMAT", help=f"Of SOURCE: {_FORMATS}.")] = "",
    to: Annotated[
        str, Option("--to", metavar="FORMAT", help="Of OUTPUT; a folder gets mds, or tar from MDS.")
    ] = "",
    columns: Annotated[
        str,
        Option(
            metavar="NAME:TARGET,...",
            help="What to take, and the encodings of MDS columns (jpg:jpeg,cls:int) or the fields of other "
            "formats (image:jpg, id:__key__); label=cls:int renames.",
        ),
    ] = "",
    keys: Annotated[bool, Option("--keys/--no-keys", help="Keep keys, in MDS as a column.")] = True,
    maxcount: Annotated[
        int | None,
        Option(min=1, metavar="N", show_default="10000", help="Most samples of a shard; not of MDS."),
    ] = None,
    maxsize: Annotated[
        str, Option(metavar="SIZE", help="Size of a shard: 1GB, or 64MiB (MDS), or 16MiB (mds1).")
    ] = "",
    compression: Annotated[
        str, Option(metavar="KIND", help="Of MDS shards: zstd:7, gz, br, bz2, snappy.")
    ] = "",
    hashes: Annotated[str, Option(metavar="NAME,...", help="In an MDS index: sha1,xxh64.")] = "",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Convert a dataset between tar shards, MDS datasets and files of records.

    What becomes of each field is guessed by its extension or encoding, and shown; --columns says it otherwise
    and leaves out all others. The bytes of images, texts and JSON stay as they are. Columns of MDS hold a
    value in every sample, so a sample that lacks one is an error. Pickles are copied, and never read.

    Many machines do one job with --part 0/64 to --part 63/64, each with one of them, or with --on ray. Then
    each file of SOURCE, or shard of MDS, becomes one shard of the series OUTPUT, which is not MDS. A run that
    was killed continues.
    """
    from mpwds.cli.encodings import plan_fields
    from mpwds.storage.writing.sinks import WriteOptions

    format, place = _source(source, from_)
    dataset = format.samples(place)
    target, where = _target(destination, to, format)
    kind, in_columns = target.name, bool(target.indexes)
    if in_columns and maxcount:
        raise BadParameter("--maxcount is not for MDS, whose shards are limited by --maxsize")
    if not in_columns:
        outputs.refuse_limits(where, maxcount or maxsize)
        outputs.refuse_inside(source, where)
    outputs.refuse_own_input(dataset.urls, where)
    jobs = None
    if over.part is not None or over.on is not None:
        if maxcount or maxsize:
            raise WrongArgument("--maxcount and --maxsize: with --part or --on, each file becomes one shard")
        jobs = _jobs(place, dataset, target, where)
    samples = dataset.read()
    first = next(samples, None)
    if first is None:
        raise ValueError(f"{source}: there is no sample in it")
    plan = plan_fields(first, dataset.columns, kind, columns)
    told = console(outputs.is_stdout(where) or as_json)
    told.print(_plan_table(plan, dataset.columns, format.name, kind))
    encodings = {new: target for new, target, _ in plan.values()}
    if keys and in_columns:
        encodings[KEY] = "str"
    hash_names = tuple(sorted(filter(None, hashes.split(","))))
    limit = parse_size(maxsize) if maxsize else None
    began = time.monotonic()
    in_parts = jobs is not None
    options = WriteOptions(
        maxcount or 10_000, limit, compression, hash_names, force and not in_parts, sync=in_parts
    )
    conversion = Conversion(format, target, options, plan, dataset.columns, columns)
    if jobs is not None:
        files = _files(format, place, dataset)
        inputs = files if dataset.shards is None else files[:1] * len(jobs)
        run = {"shards": files, "options": [format.name, kind, columns]}
        names = [job.output for job in jobs]
        with resume_or_start(where, names, run, force, part=over.part, inputs=inputs) as done:
            figures = add_up(over.own(jobs), done, conversion, 0, over.on, "converting")
        written = list(over.own(names))
    else:
        if not in_columns:
            outputs.refuse_existing([where], force)
            outputs.make_folders([where])
        figures = Counter(samples=0, bytes=0)
        with target.writer(where, encodings, options) as sink, progress(dataset.count) as advance:
            for nbytes in conversion.write(itertools.chain([first], samples), sink):
                figures.update(samples=1, bytes=nbytes)
                advance(1, "converting")
        figures["shards"] = len(sink.shards)
        written = [where] if in_columns else sink.shards
        if not in_columns:
            outputs.warn_of_older(where, sink.shards)
    if as_json:
        shown = {name: {"to": new, "as": target} for name, (new, target, _) in plan.items()}
        report(as_json, {**figures, "format": kind, "fields": shown}, to_stderr=outputs.is_stdout(where))
    seconds = time.monotonic() - began
    what = f"{counted(figures['samples'], 'sample')} ({size(figures['bytes'])}, {seconds:.1f} s)"
    shards = f"{counted(figures['shards'], 'shard')}{complete_before(figures['complete_before'])}"
    where = " to ".join(dict.fromkeys([*written[:1], *written[-1:]])) or where
    told.print(f"wrote {what} to {shards}: {where} ({kind})")


@dataclass(frozen=True)
class Conversion:
    """Converts samples. Called with a job, it writes the job's shard.

    The plan grows by the fields that the first sample has not. ``stored`` are the encodings of the source's
    columns, and ``columns`` is what the user chose.
    """

    source: Format
    target: Format
    options: WriteOptions
    plan: Plan
    stored: Mapping[str, str]
    columns: str

    def __call__(self, job: FileJob) -> Iterator[dict[str, int]]:
        dataset = self.source.samples(job.source)
        samples = dataset.read() if job.shard is None else dataset.read_shard(job.shard)
        of_job = replace(self, plan=dict(self.plan))  # it grows with the samples
        with (
            noted(f"while writing {without_credentials(job.output)}"),
            self.target.writer(job.output, {}, self.options) as sink,
        ):
            written = list(of_job.write(samples, sink))
        yield {"samples": len(written), "bytes": sum(written)}

    def write(self, samples: Iterable[dict[str, Any]], sink: Sink) -> Iterator[int]:
        """Writes converted samples; yields the bytes of each."""
        for sample in samples:
            converted = self._converted(sample)
            sink.write(converted)
            yield sum(len(value) for name, value in converted.items() if name != KEY)

    def _converted(self, sample: dict[str, Any]) -> dict[str, Any]:
        from mpwds.cli.encodings import convert_fields, is_text, plan_fields

        plan, kind, in_columns = self.plan, self.target.name, bool(self.target.indexes)
        if not self.columns and (extra := sample.keys() - plan.keys() - {KEY}):
            if in_columns:
                raise ValueError(
                    f"sample {sample[KEY]!r} has a field {min(extra)!r}, which the first sample has not: "
                    "say with --columns what to take"
                )
            plan.update(plan_fields({name: sample[name] for name in sorted(extra)}, self.stored, kind, ""))
        may_lack = not (self.columns or in_columns)
        converted: dict[str, Any] = convert_fields(sample, plan, may_lack)
        key = converted[KEY].decode() if KEY in converted else sample[KEY]
        converted[KEY] = key
        if kind != "tar" and not is_text(key):
            raise ValueError(f"the key of sample {key!r} is not UTF-8, as keys in {kind} are")
        converted[KEY] = key.encode() if kind == "mds1" else key
        return converted


class FileJob(NamedTuple):
    """A shard to write: that of a file, or of a shard of an indexed dataset."""

    source: str
    shard: int | None
    output: str


def _jobs(place: str, dataset: StoredSamples, target: Format, where: str) -> list[FileJob]:
    """The shards to write if each file becomes one; raises ``WrongArgument`` if that cannot be."""
    if target.indexes:
        raise WrongArgument(
            f"--part and --on: one index names all shards of {target.name}, and parts cannot write it "
            "together: write tar shards, or MDS of some files at a time to folders of their own below "
            "OUTPUT, without --part, and its index at the end: mpwds.streaming.base.util.merge_index(OUTPUT)"
        )
    if any(map(outputs.is_stream, dataset.urls)):
        raise WrongArgument("--part and --on: each file is read by itself, and a stream has none: name files")
    sources: list[tuple[str, int | None]] = [(url, None) for url in dataset.urls]
    if dataset.shards is not None:
        sources = [(place, shard) for shard in range(len(dataset.shards.lengths))]
    names = outputs.shard_names(where, len(sources))
    return [FileJob(*source, name) for source, name in zip(sources, names, strict=True)]


def _files(format: Format, place: str, dataset: StoredSamples) -> list[str]:
    """The files whose versions tell those of all samples: each of them, or an index."""
    if dataset.shards is None:
        return list(dataset.urls)
    return list(filter(exists, (f"{place.rstrip('/')}/{name}" for name in format.indexes)))


def _source(source: str, name: str) -> tuple[Format, str]:
    """The format of the dataset to read, and the dataset as the format takes it."""
    if name:
        format = _named("--from", name)
        return format, format.find(source) or source
    found = find_format(source)
    if found is None:
        raise ValueError(f"{source} does not tell its format: give --from {_FORMATS}")
    return found


def _named(option: str, name: str) -> Format:
    try:
        return format_named(name)
    except ValueError as error:
        raise BadParameter(f"{option} {name}: {error}") from None


def _target(destination: str, name: str, source: Format) -> tuple[Format, str]:
    """The format to write, and the folder, pattern or name to write to."""
    if name:
        format = _named("--to", name)
    else:
        last = destination.rpartition("/")[2]
        found = (each for each in FORMATS.values() if not each.indexes and each.find(last or destination))
        format = next(found, FORMATS["tar" if source.indexes else "mds"])
    if not format.indexes:
        destination = outputs.shard_pattern(destination, ending=f".{format.name}")
    return format, destination


def _plan_table(plan: Plan, columns: Mapping[str, str], source: str, target: str) -> Table:
    rows = []
    for name, (new, encoding, _) in plan.items():
        before = f"{name} ({columns[name]})" if name in columns else name
        rows.append((before, f"{new} ({encoding})" if encoding else new))
    names = (f"from {source}", f"to {target}")
    return table("", names, rows, names)
