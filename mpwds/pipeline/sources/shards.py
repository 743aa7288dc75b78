"""Lists of shards: which ones a worker reads in an epoch, and in which order."""

from __future__ import annotations

import os
import random
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, Literal, TypeAlias

from mpwds.pipeline.context import ALONE, Context, pytorch_worker_info
from mpwds.pipeline.error_context import arguments, options
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.generators import Splitter
from mpwds.pipeline.iterable_sources import IterableSource
from mpwds.pipeline.stages.shuffle import Shuffle
from mpwds.pipeline.stream import Address, Count, Description, Stage, Stream, WrappedStream
from mpwds.storage.streams.patterns import expand_names, expand_urls
from mpwds.storage.streams.urls import url_scheme

Urls: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"
Split: TypeAlias = "Stage | Callable[..., Iterable[Any]]"

_SHARDS_SHOWN = 3


class _Split(Filter):
    """A stage without options, used without a call: ``DataPipeline(shards, split_by_node, ...)``.

    Called with an iterable, it yields this process's share. ``group`` is the ``torch.distributed`` process
    group whose ranks count; see ``pytorch_worker_info``.
    """

    name: str
    divides_among: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__

    def __reduce__(self) -> str:
        return self.name  # there is one of each

    @abstractmethod
    def _share(self, context: Context) -> tuple[int, int]:
        """Which share this process takes, and how many shares there are."""

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Share(source, *self._share(context))

    def __call__(self, source: Iterable[Any], group: Any = None) -> Iterator[Any]:
        rank, world_size, worker, workers = pytorch_worker_info(group)
        context = Context(rank=rank, world_size=world_size, worker=worker, workers=workers)
        first, step = self._share(context)
        return islice(source, first, None, step)


class SplitByNode(_Split):
    """Stage that keeps every n-th of its source's elements, n being the number of nodes: ``split_by_node``.

    A node here is a process that trains (a rank). All nodes must see the same elements in the same order.

    Example:
        >>> from mpwds.pipeline.stream import Source
        >>> [n for _, n in split_by_node.stream(Source(range(7)), Context(rank=1, world_size=3))]
        [1, 4]
    """

    name = "split_by_node"
    divides_among = ("ranks",)

    def _share(self, context: Context) -> tuple[int, int]:
        return context.rank, context.world_size


class SplitByWorker(_Split):
    """Stage that keeps every n-th element, n being the node's number of workers: ``split_by_worker``."""

    name = "split_by_worker"
    divides_among = ("workers",)

    def _share(self, context: Context) -> tuple[int, int]:
        return context.worker, context.workers


class SingleNodeOnly(_Split):
    """Stage that passes everything on; raises ``ValueError`` on several nodes: ``single_node_only``."""

    name = "single_node_only"

    def _share(self, context: Context) -> tuple[int, int]:
        if context.world_size > 1:
            raise ValueError(
                f"single_node_only, on node {context.rank} of {context.world_size}: split the shards with "
                "nodesplitter=mpwds.split_by_node"
            )
        return 0, 1


class NonEmpty(Filter):
    """Stage that passes everything on, and raises ``ValueError`` if there was nothing: ``non_empty``."""

    def __str__(self) -> str:
        return "non_empty"

    __repr__ = __reduce__ = __str__

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _NonEmpty(source, context)


class _Share(WrappedStream[Any]):
    def __init__(self, source: Stream[Any], first: int, step: int) -> None:
        super().__init__(source)
        self._step = step
        self._skip = first

    def __next__(self) -> tuple[Address, Any]:
        while self._skip:
            self._next()
            self._skip -= 1
        item = self._next()
        self._skip = self._step - 1
        return item

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "skip": self._skip}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._skip = state["skip"]


class _NonEmpty(WrappedStream[Any]):
    def __init__(self, source: Stream[Any], context: Context) -> None:
        super().__init__(source)
        self._context = context
        self._found = False

    def __next__(self) -> tuple[Address, Any]:
        item = next(self._source, None)
        if item is None:
            if self._found:
                raise StopIteration
            place = f"worker {self._context.worker} of rank {self._context.rank}"
            self._found = True  # the error comes once
            raise ValueError(f"non_empty: the stages before it gave no elements in {place}")
        self._found = True
        return item

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "found": self._found}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._found = state["found"]


split_by_node: Final = SplitByNode()
split_by_worker: Final = SplitByWorker()
single_node_only: Final = SingleNodeOnly()
non_empty: Final = NonEmpty()


class _GivenShards(IterableSource):
    """Base of the sources that are given the names of all shards."""

    def __init__(self, urls: Urls) -> None:
        self._given = given_urls(urls)

    @property
    def urls(self) -> list[str]:
        """The names of all shards, in the order given."""
        return expand_urls(self._given)

    def __len__(self) -> int:
        return len(self.urls)

    def _ordered(self, rng: random.Random | None) -> Shards:
        """All shards, in random order if ``rng`` is given."""
        urls = self.urls
        order = list(range(len(urls)))
        if rng is not None:
            rng.shuffle(order)
        return Shards(urls, order, listed(self._given))


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

    def __str__(self) -> str:
        given = options(
            shuffle=(self.shuffle, False),
            nodesplitter=(self.nodesplitter, split_by_node),
            splitter=(self.splitter, split_by_worker),
        )
        return ", ".join(filter(None, [f"ShardList({listed(self._given)}", arguments(**given)])) + ")"

    def count_in(self, context: Context, exact: bool = True) -> Count:
        if self.nsamples is None or exact:
            return super().count_in(context, exact)
        numbers: list[Any] = [number for number, _ in self.stream(context)]
        return Count(len(numbers), sum(self.nsamples[number] for number in numbers))

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        moment = context.alike_on_ranks().moment
        shards = self._ordered(_rng(context, moment) if self.shuffle else None)
        among_nodes, among_workers = self._stages
        stream: Stream[Any] = shards if among_nodes is None else among_nodes.stream(shards, context)
        if self.shuffle and context.moment != moment:  # this run's own order, which other nodes do not know
            seed = _rng(context, context.moment).getrandbits(32)
            stream = Shuffle(len(shards), len(shards), seed).stream(stream, context)
        return stream if among_workers is None else among_workers.stream(stream, context)


class SimpleShardList(_GivenShards):
    """Source of a pipeline: all the shards, as ``{"url": ...}``, the same in every worker.

    To divide them, put ``split_by_node`` and ``split_by_worker`` behind it. ``ShardList`` does so itself.

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

    def __str__(self) -> str:
        seed = "" if self.seed is None else f", seed={self.seed}"
        return f"SimpleShardList({listed(self._given)}{seed})"

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        if self.seed is True:
            return self._ordered(_rng(context, context.alike_on_ranks().moment))
        return self._ordered(None if self.seed is None else random.Random(self.seed))


class Shards:
    """A stream of shards in a given order.

    Args:
        order: The addresses to yield: numbers of shards, or tuples that begin with one.
        listed: How the user gave the shards, for error messages.
        options: What a specification says of each shard (``SpecSource.options``).
    """

    def __init__(
        self,
        urls: Sequence[str],
        order: Sequence[Address],
        listed: str = "",
        options: Sequence[dict[str, Any]] | None = None,
    ) -> None:
        self._urls = urls
        self._order = order
        self._listed = listed
        self._options = options
        self._cursor = 0

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Shards:
        return self

    def __next__(self) -> tuple[Address, dict[str, Any]]:
        if self._cursor >= len(self._order):
            raise StopIteration
        address = self._order[self._cursor]
        self._cursor += 1
        return address, self.fetch(address)

    def fetch(self, address: Any) -> dict[str, Any]:
        number = _number(address)
        shard: dict[str, Any] = {"url": self._urls[number]}
        if self._options is not None and self._options[number]:
            shard["options"] = self._options[number]
        return shard

    def describe(self, address: Any, element: object = None) -> Description:
        url = self._urls[_number(address)]
        return Description(f"shard {url}", url, listed=(self._listed, self._urls) if self._listed else None)

    def state_dict(self) -> dict[str, Any]:
        return {"cursor": self._cursor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._cursor = state["cursor"]


def given_urls(urls: Urls) -> str | list[str]:
    """Shards as a dataset keeps them: a pattern, which is short to send, or all names."""
    names = expand_urls(urls)
    pattern = os.fspath(urls) if isinstance(urls, (str, os.PathLike)) else ""
    is_fixed = pattern and "${" not in pattern and expand_names(pattern) == names
    return pattern if is_fixed else names


def is_named(source: object, *endings: str) -> bool:
    """True if a source is a name with one of these endings; a query may follow it in a URL.

    Example:
        >>> [is_named(url, ".json") for url in ("x.json", "https://host/x.json?version=1", "x?.json?")]
        [True, True, False]
    """
    if not isinstance(source, (str, os.PathLike)):
        return False
    name = os.fspath(source)
    return name.endswith(endings) or (bool(url_scheme(name)) and name.partition("?")[0].endswith(endings))


def listed(urls: str | Sequence[str]) -> str:
    """Shards in Python's notation; of a long list, the beginning."""
    if isinstance(urls, str):
        return repr(urls)
    more = [f"... ({len(urls)} shards)"] if len(urls) > _SHARDS_SHOWN else []
    return f"[{', '.join([*map(repr, urls[:_SHARDS_SHOWN]), *more])}]"


def _number(address: Any) -> int:
    number: int = address if isinstance(address, int) else address[0]
    return number


def _rng(context: Context, moment: object) -> random.Random:
    return random.Random(f"shards/{context.seed or 0}/{moment}")


def _as_stage(splitter: Any) -> Stage | None:
    if splitter is None or isinstance(splitter, Stage):
        stage: Stage | None = splitter
        return stage
    return Splitter(splitter, as_list=True)
