"""Stages that divide shards among ranks and workers, by our rules or by a user's function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeAlias

from mpwds.errors import SecurityError
from mpwds.pipeline.context import ALONE, Context, pytorch_worker_info
from mpwds.pipeline.error_context import arguments
from mpwds.pipeline.filter import Filter, SingletonStage
from mpwds.pipeline.iterable_sources import UnseekableStream, skip
from mpwds.pipeline.stream import Address, Description, EveryNth, Stage, Stream, WrappedStream
from mpwds.storage.streams.patterns import check_url
from mpwds.suggestions import shown

Split: TypeAlias = "Stage | Callable[..., Iterable[Any]]"


@dataclass(frozen=True, eq=False, repr=False)
class SplitStage(SingletonStage):
    """A stage that takes a share of the elements: ``DataPipeline(shards, split_by_node, ...)``.

    ``share`` tells which share of the elements a process takes, and how many shares there are. All processes
    must see the same elements in the same order. Called with an iterable, the stage yields this process's
    share. ``group`` is the ``torch.distributed`` process group whose ranks count; see
    ``pytorch_worker_info``.

    Example:
        >>> from mpwds.pipeline.stream import Source
        >>> [n for _, n in split_by_node.stream(Source(range(7)), Context(rank=1, world_size=3))]
        [1, 4]
    """

    name: str
    share: Callable[[Context], tuple[int, int]]
    divides_among: tuple[str, ...] = ()

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        first, step = self.share(context)
        return EveryNth(source, first, None, step)

    def __call__(self, source: Iterable[Any], group: Any = None) -> Iterator[Any]:
        rank, world_size, worker, workers = pytorch_worker_info(group)
        context = Context(rank=rank, world_size=world_size, worker=worker, workers=workers)
        first, step = self.share(context)
        return islice(source, first, None, step)


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


@dataclass(frozen=True)
class Splitter(Filter):
    """Stage that yields the shards that ``function(shards)`` yields, each under its own address.

    For functions such as webdataset's ``split_by_node``, which yield some of the dicts ``{"url": ...}`` that
    they get, or return a list of them. The stage finds a shard's address by its dict, or by its URL if the
    function makes a new dict. A URL that was not among the shards is its own address. A restored stream runs
    the function again, and expects the same shards. With ``as_list`` the function gets a list, which it may
    slice, instead of an iterator.
    """

    function: Callable[..., Iterable[Any]]
    as_list: bool = False
    divides_among = ("ranks", "workers")  # perhaps neither: the function decides
    divides_itself = True

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"a splitter must be a function that takes shards, got {shown(self.function)}")

    def __str__(self) -> str:
        return arguments(self.function)

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Chosen(self, source, context)


class _Chosen(WrappedStream[Any]):
    def __init__(self, stage: Splitter, source: Stream[Any], context: Context) -> None:
        super().__init__(source)
        self._stage = stage
        self._context = context
        try:
            self._source_at_start = source.state_dict()
        except LookupError:  # the source has no state, so this stream has none either
            self._source_at_start = {}
        self._begin()

    def _begin(self) -> None:
        self._taken: list[Any] = []  # keeps the dicts, so that no two have the same id
        self._addresses: dict[int | str, Address] = {}
        self._chosen = UnseekableStream(self._choose, self._stage, self._context)
        self._count = 0
        self._made: set[str] = set()  # URLs of the function's own

    def _choose(self) -> Iterable[Any]:
        shards = self._shards()
        return self._stage.function(list(shards) if self._stage.as_list else shards)

    def _shards(self) -> Iterator[Any]:
        for address, shard in self._source:
            self._taken.append(shard)
            self._addresses[id(shard)] = address
            self._addresses.setdefault(url_of(shard), address)
            yield shard

    def __next__(self) -> tuple[Address, Any]:
        _, shard = next(self._chosen)
        self._count += 1
        return self._address(shard), shard

    def _address(self, shard: Any) -> Address:
        address = self._addresses.get(id(shard))
        if address is None:
            url = url_of(shard)
            address = self._addresses.get(url, url)
            if address == url:
                self._made.add(url)
        return address

    def fetch(self, address: Any) -> Any:
        if not isinstance(address, str):
            return self._source.fetch(address)
        if address not in self._made:  # another machine may have sent the state that names it
            try:
                check_url(address, trusted=False, where=f"a state of {self._stage}")
            except SecurityError as error:
                raise SecurityError(
                    f"a state names the shard {shown(address)}, which {self._stage} has not yielded in this "
                    "run, and which runs a command: begin the epoch again, without the state"
                ) from error
        return {"url": address}

    def describe(self, address: Any, element: object = None) -> Description:
        if isinstance(address, str):
            return Description(f"shard {address}", address)
        return self._source.describe(address, element)

    def state_dict(self) -> dict[str, Any]:
        if not self._source_at_start:
            self._source.state_dict()  # raises, and names the stage without a state
        return {"count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._source.load_state_dict(self._source_at_start)
        self._begin()
        skip(self, state["count"], str(self._stage))


def url_of(shard: Any) -> str:
    """The URL of a shard: ``{"url": ...}``, or the URL itself. Raises ``TypeError`` if it is neither."""
    url = shard.get("url") if isinstance(shard, dict) else shard
    if not isinstance(url, str):
        raise TypeError(f'a shard must be {{"url": "x.tar"}} or "x.tar", got {shown(shard)}')
    return url
