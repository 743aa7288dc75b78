"""Opens what an ``IndexedDataset`` is made of: shards of any kind, and the stages behind them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.epochs import ONCE
from mpwds.pipeline.filter import Applying
from mpwds.pipeline.indexed.source import IndexedSamples
from mpwds.pipeline.sources.directory_shards import shards_in
from mpwds.pipeline.sources.elements import Indexed
from mpwds.pipeline.sources.samples import TarSamples
from mpwds.pipeline.sources.shards import (
    NonEmpty,
    ShardList,
    SimpleShardList,
    SplitByNode,
    SplitByWorker,
    is_named,
    listed,
)
from mpwds.pipeline.stages.shuffle import Detshuffle, Shuffle
from mpwds.pipeline.stream import Stage
from mpwds.storage.caches.names import source_digest
from mpwds.storage.caches.shard_cache import ShardCache
from mpwds.storage.indexed.descriptions import load_description
from mpwds.storage.indexed.shards import IndexedShards, most_open_files
from mpwds.storage.indexed.tar_shards import TarShards
from mpwds.storage.mds.index_v1 import INDEX_NAME as MDS1_INDEX
from mpwds.storage.mds.index_v2 import INDEX_NAME as MDS2_INDEX
from mpwds.storage.mds.shards_v1 import MDS1Shards
from mpwds.storage.mds.shards_v2 import MDSShards
from mpwds.storage.streams.patterns import expand_urls
from mpwds.storage.streams.urls import is_local, local_path

_LOOK_BYTES = 1 << 16  # in an index, to see what it is
# Stages that say who reads which shard when: that does not count here.
_DEALING = SplitByNode, SplitByWorker, NonEmpty, Shuffle, Detshuffle


@dataclass(frozen=True)
class Copies:
    """Where copies of shards that are not local are kept, and the bytes that they may have in all.

    With ``remote`` samples are read by ranges; only the offsets of samples are kept.
    """

    directory: str | os.PathLike[str] | None = None
    size_bytes: float = -1
    remote: bool = False

    def cache(self) -> ShardCache | None:
        """The cache for tar shards."""
        return None if self.directory is None else ShardCache(self.directory, self.size_bytes)


class Opened(NamedTuple):
    """Shards, how their source prints, the stages behind them, and the pipeline's seed if it has one."""

    shards: IndexedShards
    called: str
    stages: Sequence[Stage] = ()
    seed: int | None = None


def opened(source: Any, copies: Copies) -> Opened:
    """Opens the source of an ``IndexedDataset``."""
    if isinstance(source, DataPipeline):
        return _of_pipeline(source, copies)
    if hasattr(source, "urls") and hasattr(source, "lengths") and hasattr(source, "read"):
        return Opened(source, f"{type(source).__name__}(...)")
    if isinstance(source, (str, os.PathLike)):
        return Opened(_named(os.fspath(source), copies), repr(os.fspath(source)))
    if isinstance(source, (list, tuple)) and source and isinstance(source[0], (str, os.PathLike)):
        urls = expand_urls(source)
        return Opened(_tar_shards(urls, copies), listed(urls))
    if hasattr(source, "__len__") and hasattr(source, "__getitem__") and not isinstance(source, Mapping):
        return Opened(ElementsAsShard(source), type(source).__name__)
    raise TypeError(f"IndexedDataset: the elements of a {type(source).__name__} have no numbers")


def _named(name: str, copies: Copies) -> IndexedShards:
    folder = local_path(name) if is_local(name) else ""
    if os.path.isdir(folder):
        return _in_folder(folder, copies)
    if is_named(name, ".yaml", ".yml"):
        raise ValueError(f"IndexedDataset: {name} is a specification, which mpwds.WebDataset reads")
    if is_named(name, ".json", ".json.gz"):
        return _described(name, copies)
    if not folder and name.endswith("/"):
        return _mds(name, copies)
    return _tar_shards(expand_urls(name), copies)


def _in_folder(folder: str, copies: Copies) -> IndexedShards:
    index = os.path.join(folder, MDS2_INDEX)
    if os.path.exists(index):
        with open(index, "rb") as file:
            start = file.read(_LOOK_BYTES)
        is_description = b'"wids_version"' in start or b'"shardlist"' in start
        return _described(index, copies) if is_description else _mds(folder, copies)
    if any(os.path.exists(os.path.join(folder, MDS1_INDEX + end)) for end in ("", ".gz")):
        return _mds(folder, copies)
    return _tar_shards(shards_in(folder), copies)


def _described(path: str, copies: Copies) -> IndexedShards:
    shards = load_description(path)["shardlist"]
    urls = [shard["url"] for shard in shards]
    lengths = [shard["nsamples"] for shard in shards]
    return _tar_shards(urls, copies, lengths, shards)


def _tar_shards(
    urls: Sequence[str],
    copies: Copies,
    lengths: Sequence[int] | None = None,
    described: Sequence[Mapping[str, Any]] | None = None,
    cache: ShardCache | None = None,
) -> TarShards:
    return TarShards(
        urls,
        lengths,
        described=described,
        cache=cache or copies.cache(),
        remote=copies.remote,
        open_files=most_open_files(),  # to open a shard for a sample costs more than most samples do
    )


def _mds(folder: str, copies: Copies) -> IndexedShards:
    """An MDS dataset of the version whose index is there."""
    if copies.remote:
        raise ValueError(
            f"IndexedDataset: {folder} is an MDS dataset. Its shards are fetched whole: leave out remote=True"
        )
    place: tuple[str | None, str | None] = folder, None
    if not is_local(folder):  # each dataset has a folder of its own, because their shards have the same names
        local = None if copies.directory is None else os.path.join(copies.directory, source_digest(folder))
        place = local, folder
    limit = None if copies.size_bytes < 0 else int(copies.size_bytes)
    try:
        return MDSShards(*place, cache_limit=limit)
    except FileNotFoundError:
        return MDS1Shards(*place, cache_limit=limit)


def _of_pipeline(pipeline: DataPipeline, copies: Copies) -> Opened:
    if pipeline._epochs != ONCE:
        raise TypeError(f"IndexedDataset: call {pipeline._epochs} behind it, not in its source")
    origin, *stages = pipeline.parts
    before: Sequence[Stage] = ()
    if isinstance(origin, DataPipeline):
        shards, called, before, _ = _of_pipeline(origin, copies)
    elif isinstance(origin, (ShardList, SimpleShardList)):
        while stages and isinstance(stages[0], _DEALING):
            del stages[0]
        reader = stages.pop(0) if stages else None
        if not isinstance(reader, TarSamples) or reader.select_files or reader.rename_files:
            raise TypeError(
                f"IndexedDataset: expected tarfile_to_samples() behind {origin}, without select_files and "
                f"rename_files, got {reader}"
            )
        shards = _tar_shards(origin.urls, copies, cache=reader.cache)
        called = listed(origin._given)
    elif isinstance(origin, IndexedSamples):
        shards, called, _, _ = opened(origin.shards, copies)
    elif isinstance(origin, Indexed):
        shards, called, _, _ = opened(origin.elements, copies)
    else:
        raise TypeError(f"IndexedDataset: the elements of {origin} have no numbers")
    obstacle = next((stage for stage in stages if not isinstance(stage, Applying)), None)
    if obstacle is not None:
        raise TypeError(
            f"IndexedDataset: {obstacle} does not make one element of one. Leave it out here; it can be put "
            'behind the IndexedDataset, and shuffle="global" chooses an order, for example'
        )
    return Opened(shards, called, (*before, *stages), pipeline._seed)


class ElementsAsShard:
    """A list or map-style dataset as one shard, so that it can be read in any order.

    Example:
        >>> ElementsAsShard("abc").read(0, 2)
        'c'
    """

    def __init__(self, elements: Sequence[Any]) -> None:
        self.urls = [type(elements).__name__]
        self.lengths = [len(elements)]
        self._elements = elements

    def read(self, shard: int, index: int) -> Any:
        return self._elements[index]

    def close(self) -> None:
        """Nothing is open."""
