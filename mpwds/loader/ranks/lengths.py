"""Counts the elements that a loader delivers, where its dataset and stages can tell without running."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from mpwds.loader.engine.options import Even
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.iterable_sources import iterates_itself
from mpwds.pipeline.stream import Count, LengthUnknown

CountOf: TypeAlias = Callable[[Context, bool], int]
"""Counts the elements of an epoch; the arguments are ``context`` and ``exact`` of ``count_delivered``."""


def even_length(even: Even | None, count: CountOf) -> int:
    """The ``len()`` of a loader: batches on this rank, or on every rank if epochs are even."""
    here = Context.current()
    if even is None:
        return count(here, False)
    counts = [count(rank, False) for rank in all_ranks(here)]
    return min(counts) if even == "drop" else max(counts)


def all_ranks(here: Context) -> list[Context]:
    """The contexts of all ranks, from that of one."""
    return [replace(here, rank=rank) for rank in range(here.world_size)]


def count_delivered(dataset: Any, workers: int, context: Context = ALONE, exact: bool = False) -> Count:
    """Counts the elements that a loader of a dataset, from ``as_dataset``, delivers to a rank.

    Raises LengthUnknown. With ``exact``, trusts no description, no ``with_length``, and no ``len()`` of a
    dataset that is not a pipeline.
    """
    if not isinstance(dataset, DataPipeline) or iterates_itself(dataset):
        if exact or not hasattr(dataset, "__len__"):
            raise LengthUnknown(f"a {type(dataset).__name__} has none")
        return Count(len(dataset))
    if dataset._length is not None and not exact:
        return Count(dataset._length)
    each = [replace(context, worker=worker, workers=workers or 1) for worker in range(workers or 1)]
    return sum((dataset.count_in(context, exact) for context in each), Count(0, 0))
