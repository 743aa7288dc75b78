"""What a command line names: the shards of datasets."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from mpwds.cli.looking.samples.mds import mds_shards
from mpwds.cli.looking.samples.reading import Found, Problem, Wants, read_shard
from mpwds.cli.shards import expanded
from mpwds.errors import ShardError
from mpwds.pipeline.sources.directory_shards import shards_in
from mpwds.storage.indexed.descriptions import load_description
from mpwds.storage.streams.gopen import gopen
from mpwds.storage.streams.urls import is_local, local_path

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


def read_or_report(shard: Shard, wants: Wants, first: int = 0) -> Found:
    """What reading a shard yields. One that cannot be read at all, as an empty file, is a problem."""
    try:
        yield from shard.read(wants, first)
    except ShardError as error:
        yield Problem(shard.name, 0, "", "", f"it cannot be read: {error}")


def shards_of(urls: Sequence[str]) -> list[Shard]:
    """The shards that patterns, URLs, descriptions (``.json``), MDS datasets and folders name, in order."""
    shards: list[Shard] = []
    for url in expanded(urls):
        of_mds = mds_shards(url)
        shards += _tar_shards(url) if of_mds is None else of_mds
    return shards


def _tar_shards(url: str) -> list[TarShard]:
    if is_local(url) and os.path.isdir(local_path(url)):
        return [TarShard(each) for each in shards_in(local_path(url))]
    if not url.partition("?")[0].endswith(".json"):
        return [TarShard(url)]
    return [
        TarShard(each["url"], each["nsamples"], each.get("filesize"), each.get("md5sum"))
        for each in load_description(url)["shardlist"]
    ]
