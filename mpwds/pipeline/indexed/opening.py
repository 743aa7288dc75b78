"""Opens what an ``IndexedDataset`` is made of: shards of any kind, and the stages after them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.epochs import ONCE
from mpwds.pipeline.filter import MapStage
from mpwds.pipeline.indexed.orders import Numbers
from mpwds.pipeline.indexed.source import IndexedSamples
from mpwds.pipeline.sources.formats import FORMATS, CacheConfig, find_format, tar_shards
from mpwds.pipeline.stream import Stage
from mpwds.storage.indexed.shards import IndexedShards
from mpwds.storage.streams.patterns import expand_urls, listed
from mpwds.storage.streams.urls import is_named


class Opened(NamedTuple):
    """Shards, how their source prints, the stages behind them, and what the source chose, if it did."""

    shards: IndexedShards
    called: str
    stages: Sequence[Stage] = ()
    seed: int | None = None
    chosen: range | Numbers | None = None


def open_source(source: Any, cache: CacheConfig) -> Opened:
    """Opens the source of an ``IndexedDataset``."""
    if isinstance(source, DataPipeline):
        return _of_pipeline(source, cache)
    if hasattr(source, "urls") and hasattr(source, "lengths") and hasattr(source, "read"):
        return Opened(source, f"{type(source).__name__}(...)")
    if isinstance(source, (str, os.PathLike)):
        return Opened(_named(os.fspath(source), cache), repr(os.fspath(source)))
    if isinstance(source, (list, tuple)) and source and isinstance(source[0], (str, os.PathLike)):
        urls = expand_urls(source)
        return Opened(tar_shards(urls, cache), listed(urls))
    if hasattr(source, "__len__") and hasattr(source, "__getitem__") and not isinstance(source, Mapping):
        return Opened(ElementsAsShard(source), type(source).__name__)
    raise TypeError(f"IndexedDataset: the elements of a {type(source).__name__} have no numbers")


def _named(name: str, cache: CacheConfig) -> IndexedShards:
    if is_named(name, ".yaml", ".yml"):
        raise ValueError(f"IndexedDataset: {name} is a specification, which mpwds.WebDataset reads")
    format, place = find_format(name) or (FORMATS["tar"], name)
    return format.shards(place, cache)


def _of_pipeline(pipeline: DataPipeline, cache: CacheConfig) -> Opened:
    from mpwds.pipeline.iterable_sources import Indexed, iterates_itself
    from mpwds.pipeline.sources.samples import TarSamples
    from mpwds.pipeline.sources.shards import ShardList, SimpleShardList
    from mpwds.pipeline.splitting import NonEmpty, SplitByNode, SplitByWorker
    from mpwds.pipeline.stages.shuffle import Detshuffle, Shuffle

    # Stages that say who reads which shard when: that does not count here.
    dealing = SplitByNode, SplitByWorker, NonEmpty, Shuffle, Detshuffle
    if pipeline.given_epochs != ONCE:
        raise TypeError(f"IndexedDataset: call {pipeline.given_epochs} after it, not in its source")
    if iterates_itself(pipeline):
        raise TypeError(f"IndexedDataset: the elements of {type(pipeline).__name__} have no numbers")
    origin, *stages = pipeline.parts
    before: Sequence[Stage] = ()
    chosen: range | Numbers | None = None
    if isinstance(origin, DataPipeline):
        shards, called, before, _, chosen = _of_pipeline(origin, cache)
    elif isinstance(origin, (ShardList, SimpleShardList)):
        while stages and isinstance(stages[0], dealing):
            del stages[0]
        reader = stages.pop(0) if stages else None
        if not isinstance(reader, TarSamples) or reader.select_files or reader.rename_files:
            raise TypeError(
                f"IndexedDataset: expected tarfile_to_samples() after {origin}, without select_files and "
                f"rename_files, got {reader}"
            )
        shards = tar_shards(origin.urls, cache, copies=reader.cache)
        called = listed(origin._given)
    elif isinstance(origin, IndexedSamples):
        shards, called, *_ = open_source(origin.shards, cache)
        chosen = origin.chosen
    elif isinstance(origin, Indexed):
        shards, called, *_ = open_source(origin.elements, cache)
    else:
        raise TypeError(f"IndexedDataset: the elements of {origin} have no numbers")
    obstacle = next((stage for stage in stages if not isinstance(stage, MapStage)), None)
    if obstacle is not None:
        raise TypeError(
            f"IndexedDataset: {obstacle} does not make one element of one. Leave it out here; it can be put "
            'after the IndexedDataset, and shuffle="global" chooses an order, for example'
        )
    return Opened(shards, called, (*before, *stages), pipeline.given_seed, chosen)


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
