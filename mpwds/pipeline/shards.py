"""Lists of shards: which ones a worker reads in an epoch, and in which order."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.place import Place
from mpwds.pipeline.stream import Address, Stream
from mpwds.storage.urls import expand_urls


@dataclass(frozen=True)
class ShardList:
    """Beginning of a pipeline: shards as ``{"url": ...}``, divided among ranks and workers.

    All ranks and workers shuffle alike, by seed and epoch; then the shards are dealt to the ranks, and a
    rank's to its workers. So over all of them each shard is read exactly once. A shard's address is its
    number among the expanded ``urls``.

    Args:
        urls: Shards: a URL or path with braces (``"train-{000..011}.tar"``), or several.
        shuffled: Whether each epoch has another order.

    Raises:
        ValueError: There are no shards.

    Example:
        >>> [shard["url"] for _, shard in ShardList("x-{0..4}.tar").stream(Context(worker=1, workers=2))]
        ['x-1.tar', 'x-3.tar']
    """

    urls: str | tuple[str, ...]
    shuffled: bool = False

    def __post_init__(self) -> None:
        self._expanded()

    def __str__(self) -> str:
        return f"ShardList({self.urls!r}, shuffled={self.shuffled})"

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        urls = self._expanded()
        readers = context.world_size * context.workers
        if readers > len(urls) and context.rank == context.worker == 0:
            warnings.warn(
                f"{len(urls)} shards for {readers} workers (of all ranks): a shard is read by one worker, "
                "so some have nothing to do",
                stacklevel=2,
            )
        return _Shards(urls, assigned_shards(len(urls), self.shuffled, context))

    def _expanded(self) -> list[str]:
        return expand_urls(self.urls if isinstance(self.urls, str) else list(self.urls))


class _Shards:
    def __init__(self, urls: Sequence[str], own: Sequence[int]) -> None:
        self._urls = urls
        self._own = own
        self._cursor = 0

    def __iter__(self) -> _Shards:
        return self

    def __next__(self) -> tuple[Address, dict[str, Any]]:
        if self._cursor >= len(self._own):
            raise StopIteration
        number = self._own[self._cursor]
        self._cursor += 1
        return number, {"url": self._urls[number]}

    def fetch(self, address: Any) -> dict[str, Any]:
        return {"url": self._urls[address]}

    def describe(self, address: Any, element: object = None) -> Place:
        return Place(f"shard {self._urls[address]}", self._urls[address])

    def state_dict(self) -> dict[str, Any]:
        return {"cursor": self._cursor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._cursor = state["cursor"]


def assigned_shards(count: int, shuffled: bool, context: Context) -> list[int]:
    """The numbers of the shards that this worker of this rank reads, in order.

    Args:
        count: Number of shards in all.
        shuffled: Whether to shuffle them; else they are dealt in order.
        context: Epoch, seed, rank and worker.

    Example:
        >>> [assigned_shards(5, False, Context(worker=w, workers=2)) for w in (0, 1)]
        [[0, 2, 4], [1, 3]]
    """
    numbers = list(range(count))
    if shuffled:
        random.Random(f"shards/{context.seed or 0}/{context.epoch}").shuffle(numbers)
    return numbers[context.rank :: context.world_size][context.worker :: context.workers]
