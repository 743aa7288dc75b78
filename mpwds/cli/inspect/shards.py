"""The shards that a command line names, and their samples, read past damage."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from mpwds.cli.console import table
from mpwds.cli.encodings import Convert, field_of, from_column
from mpwds.cli.shards import expanded
from mpwds.errors import ShardError
from mpwds.pipeline.sources.formats import KEY, Format, find_format, tar_urls
from mpwds.storage.indexed.descriptions import load_description
from mpwds.storage.mds.shards_v1 import MDS1Shards
from mpwds.storage.mds.shards_v2 import MDSShards
from mpwds.storage.mds.stored_files import StoredFile, mismatch
from mpwds.storage.streams.gopen import gopen
from mpwds.storage.streams.urls import is_description, without_credentials
from mpwds.storage.tar.names import split_name
from mpwds.storage.tar.scanning import Damage, ScannedMember, scan

_MOST_ROWS = 50
_PIECE_BYTES = 1 << 20


@dataclass
class Sample:
    """A sample, and what damage did to it."""

    shard: str
    number: int  # in the dataset
    key: str
    offset: int
    members: dict[str, ScannedMember] = field(default_factory=dict)  # by field, with the data asked for
    others: list[ScannedMember] = field(default_factory=list)  # of no sample, before the next sample begins
    interrupted: bool = False  # damage begins inside it or right after it, so its last member may be wrong
    after_damage: bool = False  # it is the first one after damage, so members may be missing

    @property
    def size(self) -> int:
        return sum(member.size for member in self.members.values())

    @property
    def is_whole(self) -> bool:
        """True if it surely has all its members."""
        return not (self.interrupted or self.after_damage)

    def data(self) -> dict[str, bytes]:
        return {name: member.data for name, member in self.members.items() if member.data is not None}

    def as_dict(self) -> dict[str, Any]:
        fields = {
            name: {"name": member.name, "offset": member.offset, "bytes": member.size}
            for name, member in self.members.items()
        }
        names = {"key": self.key, "number": self.number, "shard": without_credentials(self.shard)}
        extent = {"offset": self.offset, "bytes": self.size, "whole": self.is_whole}
        return {**names, **extent, "fields": fields}


@dataclass(frozen=True)
class Problem:
    """Something that is wrong with a shard: where, and what. ``key`` and ``field`` may be empty."""

    shard: str
    offset: int
    key: str
    field: str
    what: str

    def __str__(self) -> str:
        where = f', sample "{self.key}"' if self.key else ""
        where += f', field "{self.field}"' if self.field else ""
        return f"{without_credentials(self.shard)}, offset {self.offset}{where}: {self.what}"

    def as_dict(self) -> dict[str, Any]:
        place = {"shard": without_credentials(self.shard), "offset": self.offset}
        return {**place, "key": self.key, "field": self.field, "problem": self.what}


def problem_table(problems: Sequence[Problem], total: int) -> Table:
    """The first problems in a table, with a note about the others."""
    rows = []
    for each in problems[:_MOST_ROWS]:
        sample = ": ".join(filter(None, (each.key, each.field)))
        rows.append((without_credentials(each.shard), f"{each.offset:,}", sample, each.what))
    columns = ("shard", "offset", "sample", "what is wrong")
    found = table("problems", columns, rows, ("shard", "sample", "what is wrong"))
    if total > len(rows):
        found.caption = f"and {total - len(rows):,} more; --json lists up to 1,000 of each shard"
    return found


Wants = Callable[[int, str, str], object]
"""Takes a sample's number, its key and the name of a field; returns whether to read the field's data.

For members that belong to no sample, the key is empty and the name that of the member.
"""


Found = Generator[Sample | Problem | ScannedMember, None, None]


@dataclass(frozen=True)
class TarShard:
    """A tar archive, compressed or not, and the samples, bytes and checksum that a description tells."""

    name: str
    samples: int | None = None
    nbytes: int | None = None
    md5sum: str | None = None

    def read(self, wants: Wants, first: int = 0) -> Found:
        """Yields members before the first sample, samples, numbered from ``first`` on, and problems."""
        sample: Sample | None = None
        number, after_damage = first, False  # of the next sample
        in_twin = False  # another sample of the same key has begun

        def wants_member(name: str) -> object:
            key, field = split_name(name)
            is_same = sample is not None and key == sample.key
            return wants(number - is_same, key, field if key else name)

        for found in scan(self.name, wants_member):
            if isinstance(found, Damage):
                after_damage = True
                # Unless an archive's end is between.
                if sample is not None and found.offset <= [*sample.members.values()][-1].end:
                    sample.interrupted = True
                yield Problem(self.name, found.offset, sample.key if sample else "", "", self._reason(found))
                continue
            key, name = split_name(found.name) if found.is_file else ("", "")
            if not key:
                if sample is None:
                    yield found
                else:
                    sample.others.append(found)
                continue
            if sample is None or key != sample.key:
                if sample is not None:
                    yield sample
                sample = Sample(self.name, number, key, found.offset, after_damage=after_damage)
                number += 1
                in_twin = False
            after_damage = False
            names = list(sample.members)
            in_twin = in_twin or (len(names) > 1 and name == names[0])
            if in_twin or name in names:
                lost = "the sample has this field already: one of them is lost"
                of_twin = "it is of another sample of the same key, the others of which are lost"
                yield Problem(self.name, found.offset, key, name, lost if name in names else of_twin)
            else:
                sample.members[name] = found
        if sample is not None:
            yield sample

    def _reason(self, damage: Damage) -> str:
        """Says why it is damaged, without its name."""
        name = rf"(?<!\S){re.escape(without_credentials(self.name))}(?=[\s,:])"
        return re.sub(name, "the shard", damage.reason).replace(" of the shard", "")

    def contradictions(self, samples: int) -> Iterator[str]:
        """Yields how its file, which has so many samples, differs from what a description says about it."""
        if self.samples not in (None, samples):
            yield f"it has {samples} samples, its description says {self.samples}"
        if self.nbytes is None and self.md5sum is None:
            return
        digest, nbytes = hashlib.md5(usedforsecurity=False), 0
        with gopen(self.name) as stream:
            while piece := stream.read(_PIECE_BYTES):
                digest.update(piece)
                nbytes += len(piece)
        if self.nbytes not in (None, nbytes):
            yield f"it has {nbytes} bytes, its description says {self.nbytes}"
        if self.md5sum not in (None, digest.hexdigest()):
            yield f"its MD5 checksum is {digest.hexdigest()}, its description says {self.md5sum}"


@dataclass(frozen=True)
class MDSShard:
    """A shard of an MDS dataset.

    A column becomes the field that ``mpwds convert`` makes of it: ``image`` ``image.jpg`` if it holds JPEG.
    Sizes are those of the columns' bytes. The format does not say where fields are.
    """

    name: str
    shards: MDSShards | MDS1Shards
    place: int  # in the dataset
    columns: Mapping[str, str]  # encodings
    stored: StoredFile  # what the index says about the file

    def read(self, wants: Wants, first: int = 0) -> Found:
        fields: dict[str, tuple[str, Convert]] = {}
        failed = ""
        before = sum(self.shards.lengths[: self.place])
        for index in range(self.shards.lengths[self.place]):
            try:
                stored = self.shards.read(self.place, index)
            except (ShardError, OSError) as error:
                if str(error) == failed:  # it does not name the sample: the whole shard cannot be read
                    return
                failed = str(error)
                yield Problem(self.name, 0, "", "", f"sample {index} cannot be read: {error}")
                continue
            number = first + index
            key = bytes(stored.pop(KEY, b"")).decode("utf-8", "replace") or f"{before + index:09d}"
            fields = fields or self._fields(stored)
            members = {}
            for name, data in stored.items():
                field, convert = fields[name]
                try:
                    value = convert(data) if wants(number, key, field) else None
                except Exception as error:  # decoders raise many kinds
                    yield Problem(self.name, 0, key, field, f"it is no {self.columns[name]}: {error}")
                    value = None
                members[field] = ScannedMember(f"{key}.{field}", 0, len(data), b"", True, value)
            yield Sample(self.name, number, key, index, members)

    def contradictions(self, samples: int) -> Iterator[str]:
        with gopen(self.name) as stream:
            data = stream.read()
        if self.stored.size not in (None, len(data)):
            yield f"it has {len(data)} bytes, the index says {self.stored.size}"
        elif wrong := mismatch(data, self.stored.hashes):
            yield wrong

    def _fields(self, stored: Mapping[str, bytes]) -> dict[str, tuple[str, Convert]]:
        """The field that each column becomes; one whose field is that of another column stays as it is."""
        fields = {column: self._field(column, data) for column, data in stored.items()}
        counts = Counter(field for field, _ in fields.values())
        alike = [column for column, (field, _) in fields.items() if counts[field] > 1 and field != column]
        return {**fields, **{column: (column, bytes) for column in alike}}

    def _field(self, column: str, data: bytes) -> tuple[str, Convert]:
        encoding = self.columns[column]
        try:
            field = field_of(column, encoding, data)
        except ValueError:  # of lists, which no file holds
            return column, bytes
        return field, from_column(encoding, field)


Shard = TarShard | MDSShard
"""A shard, which can be read again and again, unless it is standard input. It can be pickled."""


def shards_of(urls: Sequence[str]) -> list[Shard]:
    """The shards that patterns, URLs, descriptions (``.json``), MDS datasets and folders name, in order."""
    shards: list[Shard] = []
    for url in expanded(urls):
        format, place = find_format(url) or (None, url)
        if format is not None and format.indexes:
            shards += _mds_shards(format, place)
        elif is_description(url):
            shards += (
                TarShard(each["url"], each["nsamples"], each.get("filesize"), each.get("md5sum"))
                for each in load_description(url)["shardlist"]
            )
        else:
            shards += map(TarShard, tar_urls(url))
    return shards


def _mds_shards(format: Format, folder: str) -> list[MDSShard]:
    shards: Any = format.samples(folder).shards
    return [
        MDSShard(os.path.join(folder, each.stored.name), shards, place, dict(columns), each.stored)
        for place, (each, columns) in enumerate(zip(shards.files, shards.shard_columns, strict=True))
    ]


def read_or_report(shard: Shard, wants: Wants, first: int = 0) -> Found:
    """Reads a shard. One that cannot be read at all, as an empty file, is a problem."""
    try:
        yield from shard.read(wants, first)
    except ShardError as error:
        yield Problem(shard.name, 0, "", "", f"it cannot be read: {error}")
