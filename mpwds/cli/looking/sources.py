"""What a command line names: the shards of datasets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mpwds.cli.looking.samples import Found, Wants, read_shard
from mpwds.storage.streams.patterns import expand_urls


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


@dataclass(frozen=True)
class TarShard:
    """A tar archive, compressed or not."""

    name: str

    def read(self, wants: Wants, first: int = 0) -> Found:
        return read_shard(self.name, wants, first)


def shards_of(urls: Sequence[str]) -> list[Shard]:
    """The shards that URLs and patterns name, in order."""
    return [TarShard(url) for pattern in urls for url in expand_urls(pattern)]
