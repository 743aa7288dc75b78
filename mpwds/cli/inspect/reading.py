"""A shard's samples with the places of their members, read past damage."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mpwds.cli.console import table
from mpwds.storage.streams.gopen import open_at
from mpwds.storage.streams.urls import without_credentials
from mpwds.storage.tar.headers import BLOCK
from mpwds.storage.tar.input import OpenAt
from mpwds.storage.tar.names import split_name
from mpwds.storage.tar.scanning import Damage, ScannedMember, blocks, scan

if TYPE_CHECKING:
    from rich.table import Table

_MOST_ROWS = 50


@dataclass(frozen=True)
class Member:
    """A field of a sample, and the file that holds it. ``data`` is ``None`` if it was not asked for."""

    field: str
    name: str
    offset: int
    size: int
    header: bytes = b""
    data: bytes | None = None

    @property
    def end(self) -> int:
        """The offset of the next member in a tar archive."""
        return self.offset + len(self.header) + self.size + -self.size % BLOCK

    @property
    def blocks(self) -> bytes:
        """The member as it is in the archive, if its data was asked for."""
        return blocks(self.header, self.data)


@dataclass
class Sample:
    """A sample.

    Attributes:
        shard: The shard.
        number: Its place in the dataset, from 0.
        key: Its key.
        offset: Where it begins in the shard.
        members: Its fields, in the order of the shard.
        interrupted: Damage begins inside it or right after it, so its last member may be wrong.
        after_damage: It is the first one after damage, so members may be missing.
    """

    shard: str
    number: int
    key: str
    offset: int
    members: list[Member] = field(default_factory=list)
    interrupted: bool = False
    after_damage: bool = False

    @property
    def size(self) -> int:
        """Bytes of data."""
        return sum(member.size for member in self.members)

    @property
    def is_whole(self) -> bool:
        """True if it surely has all its members."""
        return not (self.interrupted or self.after_damage)

    def data(self) -> dict[str, bytes]:
        """The fields that were read."""
        return {member.field: member.data for member in self.members if member.data is not None}

    def as_dict(self) -> dict[str, Any]:
        """The sample in JSON."""
        fields = {
            member.field: {"name": member.name, "offset": member.offset, "bytes": member.size}
            for member in self.members
        }
        return {
            "key": self.key,
            "number": self.number,
            "shard": without_credentials(self.shard),
            "offset": self.offset,
            "bytes": self.size,
            "whole": self.is_whole,
            "fields": fields,
        }


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
        """The problem in JSON."""
        return {
            "shard": without_credentials(self.shard),
            "offset": self.offset,
            "key": self.key,
            "field": self.field,
            "problem": self.what,
        }


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


Wants = Callable[[int, str, str], object]
"""Takes a sample's number, its key and the name of a field; returns whether to read the field's data.

For members that belong to no sample, the key is empty and the name that of the member.
"""


Found = Generator[Sample | Problem | ScannedMember, None, None]
"""What reading a shard yields."""


def no_data(number: int, key: str, field: str) -> bool:
    return False


def all_data(number: int, key: str, field: str) -> bool:
    return True


def read_shard(shard: str, wants: Wants = no_data, first: int = 0, *, open: OpenAt = open_at) -> Found:
    """Yields a tar shard's samples, its problems, and the members that belong to no sample, in order.

    Args:
        shard: Path or URL.
        wants: Which fields to read.
        first: Number of the shard's first sample in the dataset.
        open: Opens the shard at a byte offset.

    Raises:
        OSError: The shard cannot be read.
        ShardError: It is empty.
    """
    return _Grouping(shard, wants, first).read(open)


class _Grouping:
    def __init__(self, shard: str, wants: Wants, first: int) -> None:
        self._shard = shard
        self._wants = wants
        self._next_number = first
        self._sample: Sample | None = None
        self._after_damage = False

    def read(self, open: OpenAt) -> Found:
        for found in scan(self._shard, self._wants_member, open=open):
            if isinstance(found, Damage):
                yield self._damaged(found)
                continue
            key, name = split_name(found.name) if found.is_file else ("", "")
            if not key:
                yield found
                continue
            if self._sample is None or key != self._sample.key:
                yield from self._finished()
                self._sample = Sample(self._shard, self._next_number, key, found.offset)
                self._sample.after_damage = self._after_damage
                self._next_number += 1
            self._after_damage = False
            sample = self._sample
            if any(member.field == name for member in sample.members):
                yield Problem(
                    self._shard,
                    found.offset,
                    key,
                    name,
                    "the sample has this field already: one of them is lost",
                )
                continue
            sample.members.append(
                Member(name, found.name, found.offset, found.size, found.header, found.data)
            )
        yield from self._finished()

    def _wants_member(self, name: str) -> object:
        key, field = split_name(name)
        if not key:
            return self._wants(self._next_number, "", name)
        is_next = self._sample is None or key != self._sample.key
        number = self._next_number if is_next or self._sample is None else self._sample.number
        return self._wants(number, key, field)

    def _damaged(self, damage: Damage) -> Problem:
        sample, self._after_damage = self._sample, True
        if sample is not None and damage.offset <= sample.members[-1].end:  # no end of an archive between
            sample.interrupted = True
        # The archive's name is said by itself.
        name = rf"(?<!\S){re.escape(without_credentials(self._shard))}(?=[\s,:])"
        reason = re.sub(name, "the shard", damage.reason).replace(" of the shard", "")
        return Problem(self._shard, damage.offset, sample.key if sample else "", "", reason)

    def _finished(self) -> Iterator[Sample]:
        if self._sample is not None:
            yield self._sample
            self._sample = None
