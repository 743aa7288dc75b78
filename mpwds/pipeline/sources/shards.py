"""Lists of shards: which ones a worker reads in an epoch, in which order; splitters, and draws."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal, TypeAlias

from mpwds.pipeline.coercion import Split, Splitter
from mpwds.pipeline.context import ALONE, Context, pytorch_worker_info
from mpwds.pipeline.error_context import arguments, given_options
from mpwds.pipeline.filter import Filter, SingletonStage
from mpwds.pipeline.iterable_sources import IterableSource, iter_elements
from mpwds.pipeline.randomness import Draws, Permutation, worker_draws
from mpwds.pipeline.stages.shuffle import Shuffle
from mpwds.pipeline.stream import (
    Address,
    BaseStream,
    Count,
    Description,
    EveryNth,
    OrderedStream,
    Stage,
    Stream,
    WrappedStream,
    number_of,
)
from mpwds.storage.streams.patterns import Names, listed, shard_names

Urls: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"


@dataclass(frozen=True, eq=False, repr=False)
class SplitStage(SingletonStage):
    """A stage that takes a share of the elements: ``DataPipeline(shards, split_by_node, ...)``.

    ``share`` tells which share of the elements a process takes, and how many shares there are. All processes
    must see the same elements in the same order. Called with an iterable, the stage yields this process's
    share; ``group`` is as for ``pytorch_worker_info``.
    """

    name: str
    share: Callable[[Context], tuple[int, int]]
    divides_among: tuple[str, ...] = ()

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        first, step = self.share(context)
        return EveryNth(source, first, None, step)

    def __call__(self, source: Iterable[Any], group: Any = None) -> Iterator[Any]:
        first, step = self.share(Context(0, None, *pytorch_worker_info(group)))
        return islice(source, first, None, step)


# Named, as states describe the code of lambdas, which differs among Pythons.
def _of_rank(context: Context) -> tuple[int, int]:
    return context.rank, context.world_size


def _of_worker(context: Context) -> tuple[int, int]:
    return context.worker, context.workers


def _everything(context: Context) -> tuple[int, int]:
    if context.world_size > 1:
        raise ValueError(
            f"single_node_only, in {context.place}: split the shards with nodesplitter=mpwds.split_by_node"
        )
    return 0, 1


class NonEmpty(SingletonStage):
    name = "non_empty"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _NonEmpty(source, context)


class _NonEmpty(WrappedStream[Any]):
    _counters = ("_found",)

    def __init__(self, source: Stream[Any], context: Context) -> None:
        super().__init__(source)
        self._context = context
        self._found = False

    def __next__(self) -> tuple[Address, Any]:
        item = next(self._source, None)
        if item is None:
            if self._found:
                raise StopIteration
            self._found = True  # the error comes once
            raise ValueError(f"non_empty: the stages before it gave no elements in {self._context.place}")
        self._found = True
        return item


split_by_node: Final = SplitStage("split_by_node", _of_rank, ("ranks",))
"""Stage that keeps every n-th of its source's elements, n being the number of nodes: processes that train."""

split_by_worker: Final = SplitStage("split_by_worker", _of_worker, ("workers",))
"""Stage that keeps every n-th element, n being the node's number of workers."""

single_node_only: Final = SplitStage("single_node_only", _everything)
"""Stage that passes everything on; raises ``ValueError`` on several nodes."""

non_empty: Final = NonEmpty()
"""Stage that passes everything on, and raises ``ValueError`` if there was nothing."""


class _GivenShards(IterableSource):
    """Base of the sources that are given the names of all shards; ``urls`` are these, in the order given."""

    def __init__(self, urls: Urls) -> None:
        self.urls = shard_names(urls)

    def __len__(self) -> int:
        return len(self.urls)

    def __str__(self) -> str:
        given = arguments(**given_options(type(self).__init__, vars(self)))
        return f"{type(self).__name__}({listed(self.urls)}{', ' if given else ''}{given})"

    def _shuffled(self, context: Context) -> Permutation:
        """An order that depends on seed and epoch, and is the same in all workers."""
        return Permutation(len(self), "shards", context.seed or 0, context.alike_on_ranks().moment)


class ShardList(_GivenShards):
    """Source of a pipeline: shards as ``{"url": ...}``, divided among nodes and workers.

    All nodes and workers use the same order, from seed and epoch. Then the shards are divided among the
    nodes, and a node's among its workers. So each shard is read exactly once, and which worker reads it
    changes from epoch to epoch. A shard's address is its number among the expanded ``urls``.

    Args:
        urls: Shards: a URL or path with braces (``"train-{000..011}.tar"``), or several; see
            ``mpwds.storage.streams.patterns.expand_urls``.
        shuffle: Whether each epoch has another order.
        nodesplitter: Divides the shards among nodes: a stage, or a function that takes a list of shards
            and returns some of them. ``None`` gives all to each node; ``True`` is the default.
        splitter: Divides a node's shards among its workers, in the same ways.

    Attributes:
        nsamples: The number of samples in each shard, if a description says so.

    Raises:
        ValueError: There are no shards.
        TypeError: A splitter is neither a stage nor a function.

    Source:
        ``webdataset.ShardList`` (0.1).

    Example:
        >>> [shard["url"] for _, shard in ShardList("x-{0..4}.tar").stream(Context(worker=1, workers=2))]
        ['x-1.tar', 'x-3.tar']
    """

    nsamples: Sequence[int] | None = None

    def __init__(
        self,
        urls: Urls,
        shuffle: bool = False,
        nodesplitter: Split | Literal[True] | None = split_by_node,
        splitter: Split | Literal[True] | None = split_by_worker,
    ) -> None:
        super().__init__(urls)
        self.shuffle = shuffle
        self.nodesplitter = split_by_node if nodesplitter is True else nodesplitter
        self.splitter = split_by_worker if splitter is True else splitter
        self._stages = _as_stage(self.nodesplitter), _as_stage(self.splitter)
        self.divides_itself = any(isinstance(stage, Splitter) for stage in self._stages)

    def count_in(self, context: Context, exact: bool = True) -> Count:
        if self.nsamples is None or exact:
            return super().count_in(context, exact)
        numbers: list[Any] = [number for number, _ in self.stream(context)]
        return Count(len(numbers), sum(self.nsamples[number] for number in numbers))

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        shards = Shards(self.urls, self._shuffled(context) if self.shuffle else range(len(self)))
        among_nodes, among_workers = self._stages
        stream: Stream[Any] = shards if among_nodes is None else among_nodes.stream(shards, context)
        if self.shuffle and context.moment != context.alike_on_ranks().moment:
            # This run's own order, which other nodes do not know.
            stream = Shuffle(len(self), len(self)).stream(stream, context.alike_on_workers())
        return stream if among_workers is None else among_workers.stream(stream, context)


class SimpleShardList(_GivenShards):
    """Source of a pipeline: all the shards, as ``{"url": ...}``, the same in every worker.

    To divide them, put ``split_by_node`` and ``split_by_worker`` after it. ``ShardList`` does so itself.

    Args:
        urls: Shards, as for :class:`ShardList`.
        seed: Determines the order, which is the same in every epoch; ``None`` keeps the order given. With
            ``True`` each epoch has another order, the same in all workers, from the pipeline's seed.

    Source:
        ``webdataset.shardlists.SimpleShardList``, where ``True`` gives each process an order of its own.

    Example:
        >>> list(SimpleShardList("x-{0..1}.tar"))
        [{'url': 'x-0.tar'}, {'url': 'x-1.tar'}]
    """

    def __init__(self, urls: Urls, seed: int | bool | None = None) -> None:
        super().__init__(urls)
        self.seed = seed

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        order: Sequence[int] = range(len(self))
        if self.seed is True:
            order = self._shuffled(context)
        elif self.seed is not None:
            order = list(order)
            random.Random(self.seed).shuffle(order)
        return Shards(self.urls, order)


class Shards(OrderedStream[dict[str, Any]]):
    """A stream of shards in the order of their addresses: numbers of shards, or tuples that begin with one.

    ``options`` is what a specification says of each shard (``SpecSource.options``).
    """

    def __init__(
        self,
        urls: Sequence[str],
        order: Sequence[Address],
        options: Sequence[dict[str, Any]] | None = None,
    ) -> None:
        self._urls = urls
        super().__init__(order)
        self._options = options

    def fetch(self, address: Any) -> dict[str, Any]:
        number = number_of(address)
        shard: dict[str, Any] = {"url": self._urls[number]}
        if self._options is not None and self._options[number]:
            shard["options"] = self._options[number]
        return shard

    def describe(self, address: Any, element: object = None) -> Description:
        url = self._urls[number_of(address)]
        return Description(f"shard {url}", url, listed=self._urls)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "shards": len(self._urls)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["shards"] != len(self._urls):
            raise ValueError(
                f"the state is of a dataset of {state['shards']} shards, this one has {len(self._urls)}: "
                "begin the epoch again, or use the shards of before"
            )
        super().load_state_dict(state)


def _as_stage(splitter: Split | None) -> Stage | None:
    if splitter is None or isinstance(splitter, Stage):
        return splitter
    return Splitter(splitter, as_list=True)


class ResampledShards(IterableSource):
    """Source of a pipeline: shards drawn at random with replacement, as ``{"url": ...}``, without end.

    Every worker draws its own, so shards need not be divided among nodes and workers. In a pipeline,
    the draws depend only on its seed, the epoch, the rank and the worker: a run can be repeated. An address
    is (shard's number, rank, worker, number of the draw), so random augmentation differs in each draw.

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
        ``webdataset.ResampledShards``, which draws again in a pipeline too unless ``deterministic``.

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
        if not isinstance(urls, (str, os.PathLike, Names)):
            urls = list(islice(urls, max_urls))
        self.urls: Sequence[str] = [] if urls == [] and not empty_check else shard_names(urls)
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
        return iter_elements(self.stream(Context.current(self.epoch), *entropy))

    def set_epoch(self, epoch: int) -> None:
        """Makes the next ``iter()`` run epoch ``epoch``."""
        self.epoch = epoch - 1

    def stream(self, context: Context = ALONE, *entropy: object) -> Stream[Any]:
        if self.worker_seed is None:
            draws = worker_draws("resampled shards", context, self.seed, *entropy)
        else:
            facts = (context.seed or 0, context.moment, self.seed, self.worker_seed(), *entropy)
            draws = Draws("resampled shards", *facts)
        if os.environ.get("WDS_SHOW_SEED", "0") == "1":
            print(f"# ResampledShards: seed {self.seed}, {context}")
        return Shards(self.urls, _DrawnShards(self, draws, context))


ResampledShardList = ResampledShards


class _DrawnShards(Sequence[Address]):
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


class _Redrawn(BaseStream[Any]):
    _counters = ("_drawn",)  # the elements are a function of the epoch: a new stream reads them again

    def __init__(self, stage: Resampled, source: Stream[Any], context: Context) -> None:
        self._source = source
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
