"""Draw with replacement: shards of a list, or elements of any stream."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Filter, iter_elements
from mpwds.pipeline.iterable_sources import IterableSource
from mpwds.pipeline.randomness import Draws, worker_draws
from mpwds.pipeline.sources.shards import Shards, Urls, listed
from mpwds.pipeline.stream import Address, Description, Stream, WrappedStream
from mpwds.storage.streams.patterns import expand_urls


class ResampledShards(IterableSource):
    """Source of a pipeline: shards drawn at random with replacement, as ``{"url": ...}``, without end.

    Every worker draws its own, so shards need not be divided among nodes and workers. In a pipeline,
    the draws depend only on its seed, the epoch, the rank and the worker: a run can be repeated. An address
    is (shard's number, rank, worker, number of the draw), so that random augmentation differs each time a
    shard is drawn.

    Args:
        urls: Shards, as for ``mpwds.ShardList``.
        nshards: Number of draws in an epoch, for each worker; without end by default.
        seed: Determines the draws, together with the pipeline's seed.
        worker_seed: Returns a number for this worker, which replaces rank and worker in the draws.
        deterministic: If the object is iterated outside a pipeline: make the same draws each time. By
            default every ``iter()`` then draws again.
        max_urls: Limit on the shards taken from an iterable.
        empty_check: Raise ``ValueError`` at once if there are no shards; otherwise, when a shard is drawn.

    Source:
        ``webdataset.shardlists.ResampledShards``, which draws again in a pipeline too unless
        ``deterministic``.

    Example:
        >>> shards = ResampledShards("x-{0..9}.tar", nshards=3, deterministic=True)
        >>> len(list(shards))
        3
    """

    never_empty = True

    def __init__(
        self,
        urls: Urls,
        nshards: int = sys.maxsize,
        seed: int | None = 0,
        worker_seed: Callable[[], Any] | None = None,
        deterministic: bool = False,
        max_urls: int = 1_000_000,
        empty_check: bool = True,
    ) -> None:
        if not isinstance(urls, (str, os.PathLike)):
            urls = list(islice(urls, max_urls))
        self.urls: list[str] = [] if urls == [] and not empty_check else expand_urls(urls)
        self._given = urls if isinstance(urls, str) and "${" not in urls else self.urls
        self.nshards = nshards
        self.seed = seed
        self.worker_seed = worker_seed
        self.deterministic = deterministic
        self.epoch = -1

    def __str__(self) -> str:
        nshards = "" if self.nshards == sys.maxsize else f", nshards={self.nshards}"
        return f"ResampledShards({listed(self.urls)}{nshards})"

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        entropy = () if self.deterministic else (os.urandom(8),)
        return iter_elements(self._drawn(Context.current(self.epoch), *entropy))

    def set_epoch(self, epoch: int) -> None:
        """Makes the next ``iter()`` run epoch ``epoch``."""
        self.epoch = epoch - 1

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        return self._drawn(context)

    def _drawn(self, context: Context, *entropy: object) -> Shards:
        if self.worker_seed is None:
            draws = worker_draws("resampled shards", context, self.seed, *entropy)
        else:
            facts = (context.seed or 0, context.epoch, self.seed, self.worker_seed(), *entropy)
            draws = Draws("resampled shards", *facts)
        if os.environ.get("WDS_SHOW_SEED", "0") == "1":
            print(f"# ResampledShards: seed {self.seed}, {context}")
        return Shards(self.urls, _Order(self, draws, context), listed(self._given))


ResampledShardList = ResampledShards


class _Order(Sequence[Address]):
    """The addresses of the shards drawn."""

    def __init__(self, shards: ResampledShards, draws: Draws, context: Context) -> None:
        self._nshards = shards.nshards
        self._shards = len(shards.urls)
        self._draws = draws
        self._place = context.rank, context.worker

    def __len__(self) -> int:
        return self._nshards

    def __getitem__(self, number: Any) -> Any:
        if not self._shards:
            raise ValueError("ResampledShards: there are no shards to draw from")
        return (self._draws.index(number, self._shards), *self._place, number)


def resampled(n: int = sys.maxsize) -> Resampled:
    """Stage that draws ``n`` elements of its source at random with replacement, or without end.

    It first reads the source to the end and holds it: it is meant for lists of shards. Every epoch and every
    worker draws its own. An empty source gives nothing.

    Example:
        >>> len(list(resampled(5)(["a.tar", "b.tar"])))
        5
    """
    return Resampled(n)


@dataclass(frozen=True)
class Resampled(Filter):
    """The stage that ``resampled`` makes. An address is (the element's, rank, worker, number of the draw)."""

    n: int = sys.maxsize

    def __str__(self) -> str:
        return f"resampled({'' if self.n == sys.maxsize else self.n})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Redrawn(self, source, context)


class _Redrawn(WrappedStream[Any]):
    def __init__(self, stage: Resampled, source: Stream[Any], context: Context) -> None:
        super().__init__(source)
        self._n = stage.n
        self._place = context.rank, context.worker
        self._draws = worker_draws("resampled", context)
        self._items: list[tuple[Address, Any]] | None = None
        self._drawn = 0

    def __next__(self) -> tuple[Address, Any]:
        if self._items is None:
            self._items = list(self._source)
        drawn = self._drawn
        if drawn >= self._n or not self._items:
            raise StopIteration
        self._drawn = drawn + 1
        address, element = self._items[self._draws.index(drawn, len(self._items))]
        return (address, *self._place, drawn), element

    def fetch(self, address: Any) -> Any:
        return self._source.fetch(address[0])

    def describe(self, address: Any, element: object = None) -> Description:
        return self._source.describe(address[0], element)

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self._drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # The elements are a function of the epoch: a new stream reads them again.
        self._drawn = state["drawn"]
