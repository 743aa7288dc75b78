"""The shards of datasets that a command line names."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mpwds.cli.encodings import KEY, Convert, field_of, from_column
from mpwds.cli.inspect.reading import Found, Member, Problem, Sample, Wants, read_shard
from mpwds.cli.shards import expanded
from mpwds.errors import ShardError
from mpwds.pipeline.sources.formats import Format, find_format, tar_urls
from mpwds.storage.indexed.descriptions import load_description
from mpwds.storage.mds.shards_v1 import MDS1Shards
from mpwds.storage.mds.shards_v2 import MDSShards
from mpwds.storage.mds.stored_files import StoredFile, mismatch
from mpwds.storage.streams.gopen import gopen

_PIECE_BYTES = 1 << 20


class Shard(Protocol):
    """A shard, which can be read again and again, unless it is standard input. It can be pickled.

    Attributes:
        name: Its path or URL.
    """

    @property
    def name(self) -> str: ...

    def read(self, wants: Wants, first: int = 0) -> Found:
        """Its samples, numbered from ``first`` on, and what is wrong with it; see ``read_shard``."""
        ...

    def contradictions(self, samples: int) -> Iterator[str]:
        """Yields how its file, which has so many samples, differs from what a description says about it."""
        ...


@dataclass(frozen=True)
class TarShard:
    """A tar archive, compressed or not, and what a description says about it.

    Attributes:
        name: Its path or URL.
        samples: How many samples it should have.
        nbytes: How long its file should be.
        md5sum: The checksum that its file should have.
    """

    name: str
    samples: int | None = None
    nbytes: int | None = None
    md5sum: str | None = None

    def read(self, wants: Wants, first: int = 0) -> Found:
        return read_shard(self.name, wants, first)

    def contradictions(self, samples: int) -> Iterator[str]:
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

    A column becomes a field with an extension that tells its kind, as ``mpwds convert`` names it: the jpeg
    column ``image`` becomes ``image.jpg``. Sizes are those of the columns' bytes. The format says where
    samples are, and not where their fields are, so all members have the offset of the sample.

    Attributes:
        name: Path or URL of its file.
        shards: The dataset.
        place: Its number in the dataset.
        columns: The encodings by column.
        stored: What the index says about its file.
    """

    name: str
    shards: MDSShards | MDS1Shards
    place: int
    columns: Mapping[str, str]
    stored: StoredFile

    def read(self, wants: Wants, first: int = 0) -> Found:
        fields: dict[str, tuple[str, Convert]] = {}
        failed = ""
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
            key = bytes(stored.pop(KEY, b"")).decode("utf-8", "replace") or f"{number:09d}"
            fields = fields or {name: self._field(name, data) for name, data in stored.items()}
            members = []
            for name, data in stored.items():
                field, convert = fields[name]
                try:
                    value = convert(data) if wants(number, key, field) else None
                except Exception as error:  # decoders raise many kinds
                    yield Problem(self.name, 0, key, field, f"it is no {self.columns[name]}: {error}")
                    value = None
                members.append(Member(field, f"{key}.{field}", 0, len(data), data=value))
            yield Sample(self.name, number, key, index, members)

    def contradictions(self, samples: int) -> Iterator[str]:
        with gopen(self.name) as stream:
            data = stream.read()
        if self.stored.size not in (None, len(data)):
            yield f"it has {len(data)} bytes, the index says {self.stored.size}"
        elif wrong := mismatch(data, self.stored.hashes):
            yield wrong

    def _field(self, column: str, data: bytes) -> tuple[str, Convert]:
        encoding = self.columns[column]
        try:
            field = field_of(column, encoding, data)
        except ValueError:  # of lists, which no file holds
            return column, bytes
        return field, from_column(encoding, field)


def shards_of(urls: Sequence[str]) -> list[Shard]:
    """The shards that patterns, URLs, descriptions (``.json``), MDS datasets and folders name, in order."""
    shards: list[Shard] = []
    for url in expanded(urls):
        format, place = find_format(url) or (None, url)
        if format is not None and format.indexes:
            shards += _mds_shards(format, place)
        elif url.partition("?")[0].endswith(".json"):
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
