"""Samples of tar shards: members grouped by their names."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mpwds.errors import ShardError
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.shards import assigned_shards
from mpwds.pipeline.stream import Address, Stream
from mpwds.storage.tar import read_members
from mpwds.storage.urls import expand_urls

Sample = dict[str, Any]


@dataclass(frozen=True)
class TarSamples:
    """Beginning of a pipeline: the samples of tar shards.

    Successive members whose names agree up to the first dot of the base name form a sample, a dict
    of ``__key__`` (that part of the name), ``__url__`` (the shard) and the members' contents
    as bytes under the rest of their names, in lower case. Members without a dot and those under names
    like ``__meta__`` are skipped. A sample's address is (number of the shard among the expanded
    ``urls``, byte offset of its first header).

    Args:
        urls: Shards: a URL or path with braces (``"train-{000..011}.tar"``), or several.
        shardshuffle: Whether each epoch reads the shards in another order.

    Raises:
        ValueError: There are no shards.
        ShardError: While iterating, a shard is damaged or has a name twice in a sample.
    """

    urls: str | tuple[str, ...]
    shardshuffle: bool = False

    def __post_init__(self) -> None:
        if not self._shards():
            raise ValueError(f"no shards: {self.urls!r} expands to nothing")

    def __str__(self) -> str:
        return f"TarSamples({self.urls!r}, shardshuffle={self.shardshuffle})"

    def stream(self, context: Context = ALONE) -> Stream[Sample]:
        shards = self._shards()
        readers = context.world_size * context.workers
        if readers > len(shards) and context.rank == context.worker == 0:
            warnings.warn(
                f"{len(shards)} shards for {readers} workers (of all ranks): a shard is read by one worker, "
                "so some have nothing to do",
                stacklevel=2,
            )
        return _TarStream(shards, assigned_shards(len(shards), self.shardshuffle, context), context.on_shard)

    def _shards(self) -> list[str]:
        return expand_urls(self.urls if isinstance(self.urls, str) else list(self.urls))


class _TarStream:
    def __init__(
        self, urls: Sequence[str], own: Sequence[int], on_shard: Callable[[str], None] | None
    ) -> None:
        self._urls = urls
        self._own = own
        self._on_shard = on_shard
        self._position = 0  # among own shards
        self._offset = 0  # of the next sample in that shard
        self._samples: Iterator[tuple[int, int | None, Sample]] | None = None
        self._fetching: tuple[int, int, Iterator[tuple[int, int | None, Sample]]] | None = None

    def __iter__(self) -> _TarStream:
        return self

    def __next__(self) -> tuple[Address, Sample]:
        while True:
            if self._samples is None:
                if self._position >= len(self._own):
                    raise StopIteration
                url = self._urls[self._own[self._position]]
                if self._on_shard is not None:
                    self._on_shard(url)
                self._samples = read_samples(url, self._offset)
            for offset, following, sample in self._samples:
                address = (self._own[self._position], offset)
                if following is None:
                    self._end_shard()
                else:
                    self._offset = following
                return address, sample
            self._end_shard()

    def fetch(self, address: Any) -> Sample:
        shard, offset = address
        # Those restored after another usually lie one behind the other: read on where the last one ended.
        if self._fetching is not None and self._fetching[:2] == (shard, offset):
            samples = self._fetching[2]
        else:
            samples = read_samples(self._urls[shard], offset)
        self._fetching = None
        found, following, sample = next(samples, (None, None, {}))
        if found != offset:
            raise ShardError(
                f"no sample begins at offset {offset} of {self._urls[shard]}: the shard changed since the "
                "address was made"
            )
        if following is not None:
            self._fetching = shard, following, samples
        return sample

    def describe(self, address: Any) -> str:
        shard, offset = address
        url = self._urls[shard]
        try:
            for member in read_members(url, offset):
                key, _ = split_name(member.name)
                return f'sample "{key}" of {url}'
        except Exception:  # this describes another error, which must not be hidden by one of reading again
            pass
        return f"the sample at offset {offset} of {url}"

    def state_dict(self) -> dict[str, Any]:
        return {"position": self._position, "offset": self._offset}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._position, self._offset = state["position"], state["offset"]
        self._samples = None

    def _end_shard(self) -> None:
        self._samples = None
        self._position += 1
        self._offset = 0


def read_samples(url: str, offset: int = 0) -> Iterator[tuple[int, int | None, Sample]]:
    """Reads a shard's samples one after the other.

    Args:
        url: The shard.
        offset: Byte offset of a sample's first header, at which to start.

    Yields:
        A sample's offset, the offset of the sample that follows (``None`` for the last), and the sample.

    Raises:
        ShardError: The shard is damaged, or a sample has two members of the same name.
    """
    sample: Sample | None = None
    start = 0
    for member in read_members(url, offset):
        key, suffix = split_name(member.name)
        if not key:
            continue
        if sample is None or key != sample["__key__"]:
            if sample is not None:
                yield start, member.offset, sample
            sample = {"__key__": key, "__url__": url}
            start = member.offset
        if suffix in sample:
            raise ShardError(
                f"{member.name} at offset {member.offset} of {url}: sample {key!r} has a member "
                f"{suffix!r} already; in a shard each extension of a sample is there once"
            )
        sample[suffix] = member.data
    if sample is not None:
        yield start, None, sample


def split_name(name: str) -> tuple[str, str]:
    """A member's sample key and its extension in lower case; two empty strings if it is part of no sample.

    Example:
        >>> split_name("train/a.b/0017.seg.PNG"), split_name("README"), split_name("__meta__/x.png")
        (('train/a.b/0017', 'seg.png'), ('', ''), ('', ''))
    """
    if name.startswith("__"):
        top = name.partition("/")[0]
        if len(top) >= 4 and top.endswith("__"):
            return "", ""
    base = name.rfind("/") + 1
    dot = name.find(".", base)
    if dot < 0 or dot == 0:
        return "", ""
    if dot == base and "." in name[name.rfind("/", 0, base - 1) + 1 : base]:
        return "", ""
    return name[:dot], name[dot + 1 :].lower()
