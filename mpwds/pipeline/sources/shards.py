"""Lists of shards: which ones a worker reads in an epoch, and in which order."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.parts import IterableSource
from mpwds.pipeline.sources.splitting import Splitter, split_by_node, split_by_worker
from mpwds.pipeline.stages.shuffle import Shuffle
from mpwds.pipeline.stream import Address, Description, Stage, Stream
from mpwds.storage.streams.patterns import expand_urls

Urls: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"
Split: TypeAlias = "Stage | Callable[..., Iterable[Any]]"

_SHARDS_SHOWN = 3


class ShardList(IterableSource):
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

    Raises:
        ValueError: There are no shards.
        TypeError: A splitter is neither a stage nor a function.

    Source:
        ``webdataset.ShardList`` (0.1).

    Example:
        >>> [shard["url"] for _, shard in ShardList("x-{0..4}.tar").stream(Context(worker=1, workers=2))]
        ['x-1.tar', 'x-3.tar']
    """

    def __init__(
        self,
        urls: Urls,
        shuffle: bool = False,
        nodesplitter: Split | Literal[True] | None = split_by_node,
        splitter: Split | Literal[True] | None = split_by_worker,
    ) -> None:
        self._given = given_urls(urls)
        self.shuffle = shuffle
        self.nodesplitter = split_by_node if nodesplitter is True else nodesplitter
        self.splitter = split_by_worker if splitter is True else splitter
        self._nodesplitter = None if self.nodesplitter is None else _as_splitter(self.nodesplitter)
        self._splitter = None if self.splitter is None else _as_splitter(self.splitter)

    @property
    def urls(self) -> list[str]:
        """The names of all shards, in the order given."""
        return expand_urls(self._given)

    def __str__(self) -> str:
        given = options(
            shuffle=(self.shuffle, False),
            nodesplitter=(self.nodesplitter, split_by_node),
            splitter=(self.splitter, split_by_worker),
        )
        return ", ".join(filter(None, [f"ShardList({listed(self._given)}", arguments(**given)])) + ")"

    def __len__(self) -> int:
        return len(self.urls)

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        urls = self.urls
        order = list(range(len(urls)))
        everywhere = context.alike_on_ranks()
        if self.shuffle:
            random.Random(f"shards/{context.seed or 0}/{everywhere.moment}").shuffle(order)
        readers = context.world_size * context.workers
        split = self.nodesplitter is split_by_node and self.splitter is split_by_worker
        if split and readers > len(order) and context.rank == context.worker == 0:
            warnings.warn(
                f"{len(order)} shards for {readers} workers (of all ranks): one worker reads a shard, so "
                "some workers have nothing to do",
                stacklevel=2,
            )
        stream: Stream[Any] = Shards(urls, order, listed(self._given))
        if self._nodesplitter is not None:
            stream = self._nodesplitter.stream(stream, context)
        if self.shuffle and context.moment != everywhere.moment:
            stream = self._reordered(stream, context)
        return stream if self._splitter is None else self._splitter.stream(stream, context)

    def _reordered(self, stream: Stream[Any], context: Context) -> Stream[Any]:
        """The node's shards in an order that is this run's own: other nodes do not know it."""
        seed = random.Random(f"shards/{context.seed or 0}/{context.moment}").getrandbits(32)
        return Shuffle(len(self), len(self), seed).stream(stream, context)


class SimpleShardList(IterableSource):
    """Source of a pipeline: all the shards, as ``{"url": ...}``, the same in every worker.

    To divide them, put ``split_by_node`` and ``split_by_worker`` behind it. ``ShardList`` does so itself.

    Args:
        urls: Shards: a pattern or an iterable of names; see ``mpwds.storage.streams.patterns.expand_urls``.
        seed: Determines the order, which is the same in every epoch; ``None`` keeps the order given. With
            ``True`` each epoch has another order, the same in all workers, from the pipeline's seed.

    Raises:
        ValueError: There are no shards.

    Source:
        ``webdataset.shardlists.SimpleShardList``, where ``True`` gives each process an order of its own.

    Example:
        >>> list(SimpleShardList("x-{0..1}.tar"))
        [{'url': 'x-0.tar'}, {'url': 'x-1.tar'}]
    """

    def __init__(self, urls: Urls, seed: int | bool | None = None) -> None:
        self._given = given_urls(urls)
        self.seed = seed

    @property
    def urls(self) -> list[str]:
        """The names of all shards, in the order given."""
        return expand_urls(self._given)

    def __str__(self) -> str:
        seed = "" if self.seed is None else f", seed={self.seed}"
        return f"SimpleShardList({listed(self._given)}{seed})"

    def __len__(self) -> int:
        return len(self.urls)

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        urls = self.urls
        order = list(range(len(urls)))
        if self.seed is True:
            random.Random(f"shards/{context.seed or 0}/{context.alike_on_ranks().moment}").shuffle(order)
        elif self.seed is not None:
            random.Random(self.seed).shuffle(order)
        return Shards(urls, order, listed(self._given))


class Shards:
    """A stream of shards in a given order.

    Args:
        urls: All shards; an address is a shard's number among them.
        order: The addresses to yield.
        listed: How the user gave the shards, for error messages.
    """

    def __init__(self, urls: Sequence[str], order: Sequence[int], listed: str = "") -> None:
        self._urls = urls
        self._listed = listed
        self._order = order
        self._cursor = 0

    def __iter__(self) -> Shards:
        return self

    def __next__(self) -> tuple[Address, dict[str, Any]]:
        if self._cursor >= len(self._order):
            raise StopIteration
        number = self._order[self._cursor]
        self._cursor += 1
        return number, {"url": self._urls[number]}

    def fetch(self, address: Any) -> dict[str, Any]:
        return {"url": self._urls[address]}

    def describe(self, address: Any, element: object = None) -> Description:
        url = self._urls[address]
        return Description(f"shard {url}", url, listed=(self._listed, self._urls) if self._listed else None)

    def state_dict(self) -> dict[str, Any]:
        return {"cursor": self._cursor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._cursor = state["cursor"]


def given_urls(urls: Urls) -> str | list[str]:
    """Shards as a dataset keeps them: a pattern, which is short to send, or all names.

    Raises:
        ValueError: There are no shards.
        TypeError: They are not strings, paths or an iterable of these.
    """
    names = expand_urls(urls)
    pattern = os.fspath(urls) if isinstance(urls, (str, os.PathLike)) else ""
    return pattern if pattern and "${" not in pattern else names


def listed(urls: str | Sequence[str]) -> str:
    """Shards in Python's notation; of a long list, the beginning."""
    if isinstance(urls, str):
        return repr(urls)
    more = [f"... ({len(urls)} shards)"] if len(urls) > _SHARDS_SHOWN else []
    return f"[{', '.join([*map(repr, urls[:_SHARDS_SHOWN]), *more])}]"


def _as_splitter(splitter: Any) -> Stage:
    if hasattr(splitter, "stream"):
        stage: Stage = splitter
        return stage
    return Splitter(splitter, as_list=True)
