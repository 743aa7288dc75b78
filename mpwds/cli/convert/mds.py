"""Samples of MDS datasets of both versions, with their columns as they are stored."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from mpwds.cli.encodings import KEY, Convert, field_of, from_column, parse
from mpwds.pipeline.sources.formats import Format
from mpwds.storage.writing.tar_members import member_bytes

_LOOKED_AT = 64  # samples

Fields = Mapping[str, tuple[str, Convert]]
"""By column, the field of a tar shard that it becomes, and the function between their bytes."""


@dataclass(frozen=True)
class MDSSamples:
    """The samples of a dataset as those of tar shards, or some of them. A worker gets a copy.

    Attributes:
        shards: An ``MDSShards`` that does not decode, or ``MDS1Shards``.
        columns: The encodings by column, without the keys' column.
        fields: What columns become; others are left out. ``None`` leaves all columns as they are.
        numbers: The samples to iterate; all of them if ``None``.
    """

    shards: Any
    columns: Mapping[str, str]
    fields: Fields | None = None
    numbers: Sequence[int] | None = None

    @cached_property
    def _starts(self) -> list[int]:
        return list(itertools.accumulate(self.shards.lengths, initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    @cached_property
    def _mean_size(self) -> int:
        looked_at = list(itertools.islice(replace(self, numbers=None), _LOOKED_AT))
        sizes = [
            member_bytes(len(data), f"{sample[KEY]}.{name}")
            for sample in looked_at
            for name, data in sample.items()
            if name != KEY
        ]
        return sum(sizes) // max(len(looked_at), 1)

    def size_of(self, number: int) -> int:
        """About the bytes of a sample in a tar archive: the mean of the first."""
        return self._mean_size

    def part(self, numbers: Sequence[int]) -> MDSSamples:
        """The samples of these numbers."""
        return replace(self, numbers=numbers)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(len(self)) if self.numbers is None else self.numbers:
            shard = bisect.bisect_right(self._starts, number) - 1
            stored = self.shards.read(shard, number - self._starts[shard])
            key = stored.pop(KEY, None)
            sample: dict[str, Any] = {KEY: b"%09d" % number if key is None else bytes(key)}
            if self.fields is None:
                sample.update(stored)
            else:
                sample.update(
                    {field: convert(stored[name]) for name, (field, convert) in self.fields.items()}
                )
            sample[KEY] = sample[KEY].decode()
            yield sample


def open_mds(format: Format, source: str) -> MDSSamples:
    """Opens an MDS dataset for reading in any order; its columns' bytes stay as they are stored."""
    stored = format.samples(source, copies_bytes=None)
    return MDSSamples(stored.shards, stored.columns)


def as_fields(samples: MDSSamples, columns: str = "", key: str = "") -> MDSSamples:
    """The samples with the fields that a user chose by ``COLUMN:FIELD,...``, or else those guessed; keys are
    those of the column ``key``, if there is one."""
    first = next(iter(samples.part([0])))
    chosen = parse(columns, samples.columns) if columns else dict.fromkeys(samples.columns, ("", ""))
    fields = {}
    for name, (_, target) in chosen.items():
        field = target or field_of(name, samples.columns[name], first[name])
        fields[name] = (field, from_column(samples.columns[name], field))
    if key:
        fields[key] = (KEY, from_column(samples.columns[key], KEY))
    if len({field for field, _ in fields.values()}) < len(fields):
        raise ValueError(
            f"two columns would be one field: {', '.join(field for field, _ in fields.values())}"
        )
    return replace(samples, fields=fields)
