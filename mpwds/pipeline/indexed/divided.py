"""Datasets that other libraries' programs extend, and that a torch DataLoader divides into batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.filter import OneOfEach
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.indexed.dataset import IndexedDataset
from mpwds.pipeline.indexed.permutation import Numbers
from mpwds.pipeline.indexed.source import IndexedSamples
from mpwds.pipeline.stream import Stream
from mpwds.storage.indexed.shards import IndexedShards


@dataclass(frozen=True, eq=False)
class DividedSamples(IndexedSamples):
    """Indexed samples of which each rank, and each of its workers, reads consecutive ones of an epoch.

    Args:
        batch_size: Samples of a batch. Workers then get whole batches, but for the one whose turn it is to
            make a rank's last batch. 0 divides the samples evenly.
        replication: Number of consecutive ranks that read the same samples.
    """

    batch_size: int = 0
    replication: int = 1

    def places(self, context: Context) -> range:
        """The places of an epoch whose samples a worker reads."""
        ranks = context.world_size // self.replication
        rank = _share(range(len(self)), context.rank // self.replication, ranks)
        if not self.batch_size:
            return _share(rank, context.worker, context.workers)
        batches = range(-(-len(rank) // self.batch_size))
        last = (len(batches) - 1) % context.workers
        own = _share(batches, context.worker, context.workers)
        missing = len(batches) * self.batch_size - len(rank)
        start = own.start * self.batch_size - missing * (context.worker > last)
        stop = own.stop * self.batch_size - missing * (context.worker >= last)
        return rank[start:stop]


def _share(of: range, number: int, parts: int) -> range:
    """Part ``number`` of a range; the first ones may have one element more."""
    size, more = divmod(len(of), parts)
    start = number * size + min(number, more)
    return of[start : start + size + (number < more)]


class DividedDataset(IndexedDataset):
    """Base of datasets whose subclasses may change ``ds[i]``: epochs then consist of those samples.

    torch's DataLoader iterates them. ``len`` is the number of this rank's samples.

    Args:
        source: All samples, of which ``ds[i]`` is the one of number ``i``.
        chosen: Numbers of the samples of an epoch; all by default.
        seed: Determines the order of an epoch.
    """

    def __init__(
        self, source: DividedSamples, chosen: Numbers | None = None, seed: int | None = None
    ) -> None:
        DataPipeline.__init__(self, source, seed=seed)
        self._chosen = chosen

    def __str__(self) -> str:
        return self._call

    @property
    def map_style(self) -> bool:
        return False

    def __len__(self) -> int:
        context = replace(self._context(), worker=0, workers=1)
        return self.parts[0].count_in(context) if self._length is None else self._length

    @property
    def parts(self) -> tuple[Any, ...]:
        source, *stages = super().parts
        source = replace(source, chosen=self._chosen)
        if not self._is_changed:
            return source, *stages
        return replace(source, shards=_Numbers(source.shards)), _Items(self.__getitem__)

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        """The stream of one epoch."""
        return super().stream(context)  # a pipeline that begins here does not take over the parts alone

    def compose(self, *stages: Any, **keywords: Any) -> Any:
        """A copy with more stages; of a subclass that changes ``ds[i]``, a pipeline."""
        if self._is_changed:
            return DataPipeline(self).compose(*stages, **keywords)
        return super().compose(*stages, **keywords)

    @property
    def _is_changed(self) -> bool:
        return type(self).__getitem__ is not IndexedDataset.__getitem__


@dataclass(frozen=True)
class _Items(OneOfEach, called="getitem"):
    get: Callable[[int], Any]
    handler: Handler = reraise_exception

    def apply(self, number: int) -> Any:
        return self.get(number)


class _Numbers:
    """Shards whose samples are their numbers, counted through all shards."""

    def __init__(self, shards: IndexedShards) -> None:
        self.urls: Sequence[str] = shards.urls
        self.lengths: Sequence[int] = shards.lengths
        self._starts = [0, *accumulate(shards.lengths)]

    def read(self, shard: int, index: int) -> Any:
        return self._starts[shard] + index

    def close(self) -> None:
        """Nothing is open."""
