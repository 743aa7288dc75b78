"""Functions that choose and order lists of shards: the hooks of webdataset 0.1's Dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mpwds.pipeline.context import Context
from mpwds.pipeline.sources.shards import ShardList, Split, Urls
from mpwds.pipeline.sources.splitter import Splitter
from mpwds.pipeline.sources.splitting import split_by_node, split_by_worker
from mpwds.pipeline.stream import Stage

UrlHook: TypeAlias = Callable[[list[str]], Sequence[str]]
"""Takes a list of URLs, returns those to read, in the order to read them."""


def all_urls(urls: list[str]) -> list[str]:
    """Hook that chooses all shards: as ``shard_selection``, every worker reads all of its node's.

    Example:
        >>> all_urls(["a.tar", "b.tar"])
        ['a.tar', 'b.tar']
    """
    return urls


def worker_urls(urls: list[str]) -> list[str]:
    """Hook that chooses the shards of this worker: what ``shard_selection`` is by default.

    Example:
        >>> worker_urls(["a.tar", "b.tar"])
        ['a.tar', 'b.tar']
    """
    context = Context.current()
    return urls[context.worker :: context.workers]


@dataclass(frozen=True)
class ShardHooks:
    """How a dataset's shards are chosen and ordered. Each hook is optional.

    Args:
        before: Called in every worker before an epoch's first shard is chosen.
        node_selection: Chooses this node's shards; every n-th by default.
        shard_selection: Chooses this worker's shards among them; every n-th by default.
        shard_shuffle: Orders this worker's shards.
        shuffled: Whether all shards are shuffled, in all processes alike, before that.

    Example:
        >>> shards, order = ShardHooks(shard_shuffle=sorted).parts(["b.tar", "a.tar"])
        >>> list(order(shards))
        [{'url': 'a.tar'}, {'url': 'b.tar'}]
    """

    before: Callable[[], Any] | None = None
    node_selection: UrlHook | None = None
    shard_selection: UrlHook | None = None
    shard_shuffle: UrlHook | None = None
    shuffled: bool = False

    def parts(self, urls: Urls) -> list[Any]:
        """The list of shards and the stages behind it."""
        own = self.shard_selection
        shards = ShardList(
            urls,
            self.shuffled,
            nodesplitter=_splitter(self.node_selection, split_by_node),
            splitter=_splitter(None if own is worker_urls else own, split_by_worker),
        )
        stages: list[Stage] = []
        if self.before is not None:
            stages.append(Splitter(_Prepared(self.before)))
        if self.shard_shuffle is not None:
            stages.append(Splitter(_Chosen(self.shard_shuffle)))
        return [shards, *stages]


def _splitter(hook: UrlHook | None, default: Stage) -> Split:
    return default if hook is None else Splitter(_Chosen(hook))


@dataclass(frozen=True)
class _Chosen:
    hook: UrlHook

    def __call__(self, shards: Iterator[Any]) -> Iterator[Any]:
        for url in self.hook([shard["url"] for shard in shards]):
            yield {"url": url}


@dataclass(frozen=True)
class _Prepared:
    before: Callable[[], Any]

    def __call__(self, shards: Iterator[Any]) -> Iterator[Any]:
        self.before()
        yield from shards
