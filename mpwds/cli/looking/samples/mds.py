"""MDS datasets of both versions as shards of samples, whose columns appear as fields of tar shards do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mpwds.cli.looking.samples.reading import Found, Member, Problem, Sample, Wants
from mpwds.cli.making.encodings import KEY, Convert, field_of, from_column
from mpwds.errors import ShardError
from mpwds.pipeline.formats import find_format
from mpwds.storage.mds.stored_files import StoredFile, mismatch
from mpwds.storage.streams.gopen import gopen


@dataclass(frozen=True)
class MDSShard:
    """A shard of an MDS dataset.

    A column becomes a field with an extension that tells its kind, as ``mpwds convert`` names it: the jpeg
    column ``image`` becomes ``image.jpg``. Sizes are those of the columns' bytes. The format says where
    samples are, and not where their fields are, so all members have the offset of the sample.

    Attributes:
        name: Path or URL of its file.
        shards: The dataset: an ``MDSShards`` that does not decode, or ``MDS1Shards``.
        place: Its number in the dataset.
        columns: The encodings by column.
        stored: What the index says about its file.
    """

    name: str
    shards: Any
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


def mds_shards(url: str) -> list[MDSShard] | None:
    """The shards of a dataset, given as its folder or the URL of its index; ``None`` if it is something else.

    Shards of another machine, and compressed ones, are fetched to temporary folders.
    """
    found = find_format(url)
    if found is None or not found[0].indexes:
        return None
    format, folder = found
    shards: Any = format.samples(folder).shards
    return [
        MDSShard(os.path.join(folder, each.stored.name), shards, place, dict(columns), each.stored)
        for place, (each, columns) in enumerate(zip(shards.files, shards.shard_columns, strict=True))
    ]
