"""Shards of several collections, of each so many for an epoch."""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.parts import IterableSource
from mpwds.pipeline.sources.shards import SimpleShardList, Urls
from mpwds.pipeline.sources.specs import DatasetSpec, SpecLike, load_spec
from mpwds.pipeline.stream import Address, Description, Stream


class MultiShardSample(IterableSource):
    """Source of a pipeline: shards of several collections, shuffled together, as ``{"url": ...}``.

    Of each collection an epoch takes all shards, or ``choose`` of them, or ``resample`` draws with
    replacement, as its specification says. All nodes and workers get the same shards in the same order, by
    seed and epoch: put ``split_by_node`` and ``split_by_worker`` behind it, as ``WebDataset(spec)`` does. An
    address is (shard's number, how many times the epoch had it before), so that random augmentation differs
    each time.

    Args:
        fname: A YAML file, a dict of the same form, or what ``mpwds.load_spec`` returned.

    Raises:
        SpecError: The specification is wrong.
        SecurityError: A URL in the file runs a command.
        ValueError: The specification mixes samples rather than shards: only ``WebDataset(spec)`` does that.

    Source:
        ``webdataset.shardlists.MultiShardSample``, which draws otherwise in each process unless ``set_epoch``
        is called.

    Example:
        >>> scans, books = {"shards": "a-{0..9}.tar", "choose": 2}, {"shards": "b-{0..9}.tar", "choose": 1}
        >>> spec = {"datasets": [scans, books]}
        >>> sorted(shard["url"][0] for shard in MultiShardSample(spec))
        ['a', 'a', 'b']
    """

    def __init__(self, fname: SpecLike) -> None:
        self.spec: DatasetSpec = load_spec(fname)
        if self.spec.mixes_samples:
            raise ValueError(
                f"{self.spec} has sources with weight, subsample, shuffle or epoch, so samples are mixed, "
                "not shards: use mpwds.WebDataset(spec)"
            )
        self._series = 0

    def __str__(self) -> str:
        return f"MultiShardSample({self.spec})"

    def set_epoch(self, epoch: int) -> None:
        """Makes other draws than before, the same in all processes that set the same number.

        A pipeline counts epochs by itself: there is no need to call it.

        Args:
            epoch: Any whole number.
        """
        self._series = epoch
        super().set_epoch(0)

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        rng = random.Random(f"sources/{context.seed or 0}/{context.epoch}/{self._series}")
        order: list[int] = []
        first = 0
        for source in self.spec.sources:
            numbers = range(first, first + len(source.urls))
            first += len(source.urls)
            if source.resample is not None:
                order += rng.choices(numbers, k=source.resample)
            elif source.choose is not None:
                order += rng.sample(numbers, source.choose)
            else:
                order += numbers
        rng.shuffle(order)
        return _Sampled(self.spec, order)


def shardspec(spec: Urls) -> SimpleShardList | MultiShardSample:
    """The list of shards that a pattern, or a YAML file, stands for.

    Args:
        spec: A pattern, an iterable of names, or the path of a specification (``.yaml``, ``.yml``).

    Raises:
        ValueError: There are no shards, or the specification is wrong.

    Example:
        >>> len(shardspec("x-{0..9}.tar"))
        10
    """
    if isinstance(spec, (str, os.PathLike)) and os.fspath(spec).endswith((".yaml", ".yml")):
        return MultiShardSample(spec)
    return SimpleShardList(spec)


class _Sampled:
    def __init__(self, spec: DatasetSpec, order: list[int]) -> None:
        self._shards = [
            {"url": url, **({"options": source.options} if source.options else {})}
            for source in spec.sources
            for url in source.urls
        ]
        self._order = order
        self._cursor = 0
        self._times: Counter[int] = Counter()

    def __iter__(self) -> _Sampled:
        return self

    def __next__(self) -> tuple[Address, dict[str, Any]]:
        if self._cursor >= len(self._order):
            raise StopIteration
        number = self._order[self._cursor]
        self._cursor += 1
        address = number, self._times[number]
        self._times[number] += 1
        return address, dict(self._shards[number])

    def fetch(self, address: Any) -> dict[str, Any]:
        return dict(self._shards[address[0]])

    def describe(self, address: Any, element: object = None) -> Description:
        url = self._shards[address[0]]["url"]
        return Description(f"shard {url}", url)

    def state_dict(self) -> dict[str, Any]:
        return {"cursor": self._cursor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._cursor = state["cursor"]
        self._times = Counter(self._order[: self._cursor])
