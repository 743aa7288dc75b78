"""MDS datasets of both versions as shards of samples, whose columns appear as fields of tar shards do."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mpwds.cli.looking.samples.reading import Found, Member, Problem, Sample, Wants
from mpwds.cli.making.encodings import KEY, Convert, field_of, from_column
from mpwds.cli.making.sources.mds import SCRATCH_BYTES, scratch
from mpwds.errors import ShardError
from mpwds.storage.mds import index_v1
from mpwds.storage.mds.hashes import mismatch
from mpwds.storage.mds.index_v2 import INDEX_NAME, parse_index
from mpwds.storage.mds.local_shards import StoredFile
from mpwds.storage.mds.shards_v1 import MDS1Shards
from mpwds.storage.mds.shards_v2 import MDSShards
from mpwds.storage.streams.gopen import gopen
from mpwds.storage.streams.urls import is_local, local_path

_OLD_INDEXES = (index_v1.INDEX_NAME, index_v1.INDEX_NAME + ".gz")


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
        columns: The encodings by column; empty for version 1, whose columns are bytes.
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
        encoding = self.columns.get(column, "bytes")
        try:
            field = field_of(column, encoding, data)
        except ValueError:  # of lists, which no file holds
            return column, bytes
        return field, from_column(encoding, field)


def mds_shards(url: str) -> list[MDSShard] | None:
    """The shards of a dataset, given as its folder or the URL of its index; ``None`` if it is something else.

    Shards of another machine, and compressed ones, are fetched to temporary folders.
    """
    folder, _, name = url.rpartition("/")
    if is_local(url) and os.path.isdir(local_path(url)):
        folder = local_path(url)
        names = (INDEX_NAME, *_OLD_INDEXES)
        name = next((each for each in names if os.path.exists(os.path.join(folder, each))), "")
    if name in _OLD_INDEXES:
        return _of_version_1(folder or ".", name)
    return _of_version_2(folder or ".") if name == INDEX_NAME else None


def _of_version_2(folder: str) -> list[MDSShard] | None:
    path = os.path.join(folder, INDEX_NAME)
    with gopen(path) as stream:
        data = stream.read()
    if b'"wids_version"' in data and "wids_version" in json.loads(data):
        return None
    listed = parse_index(data, path)
    is_packed = any(shard.files.packed is not None for shard in listed)
    shards = MDSShards(scratch(folder, is_packed), folder, decode=False, cache_limit=SCRATCH_BYTES)
    return [
        MDSShard(
            os.path.join(folder, each.files.stored.name), shards, place, dict(each.columns), each.files.stored
        )
        for place, each in enumerate(listed)
    ]


def _of_version_1(folder: str, index: str) -> list[MDSShard]:
    end = index.removeprefix(index_v1.INDEX_NAME)
    shards = MDS1Shards(scratch(folder, bool(end)), folder, cache_limit=SCRATCH_BYTES)
    names = [os.path.basename(path) + end for path in shards.urls]
    return [
        MDSShard(os.path.join(folder, name), shards, place, {}, StoredFile(name, None))
        for place, name in enumerate(names)
    ]
