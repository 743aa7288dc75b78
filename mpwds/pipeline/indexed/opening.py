"""Opens what an ``IndexedDataset`` is made of: shards of any kind, and the stages behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.filter import Applying
from mpwds.pipeline.indexed.source import IndexedSamples
from mpwds.pipeline.stream import Stage
from mpwds.storage.indexed.shards import IndexedShards


def opened(source: Any) -> tuple[IndexedShards, list[Stage], str, int | None]:
    """The shards of a source, the stages behind them, how the source prints, and its seed if it has one."""
    if isinstance(source, DataPipeline):
        origin, *stages = source.parts
        for stage in stages:
            if not isinstance(stage, Applying):
                raise TypeError(
                    f"IndexedDataset: {stage} does not make one element of one: leave it out here, and put it "
                    'behind the IndexedDataset (an order is chosen by shuffle="global", for example)'
                )
        shards, _, called, _ = opened(origin.shards if isinstance(origin, IndexedSamples) else origin)
        return shards, stages, called, source._seed
    if hasattr(source, "urls") and hasattr(source, "lengths") and hasattr(source, "read"):
        return source, [], f"{type(source).__name__}(...)", None
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        shard: IndexedShards = ElementsAsShard(source)
        return shard, [], type(source).__name__, None
    raise TypeError(f"IndexedDataset: a {type(source).__name__} has no samples with numbers")


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
