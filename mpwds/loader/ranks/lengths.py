"""Counts the elements that a loader delivers, where its dataset and stages can tell without running."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from mpwds.loader.engine.options import Even
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.counts import Count, LengthUnknown, count_of
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.epochs import Epochs
from mpwds.pipeline.parts import iterates_itself

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
    """How many elements a loader with a dataset, from ``as_dataset``, delivers to a rank, or LengthUnknown.

    With ``exact``, trusts no description, no ``with_length``, and no ``len()`` of what is not a pipeline.
    """
    if not isinstance(dataset, DataPipeline) or iterates_itself(dataset):
        if exact or not hasattr(dataset, "__len__"):
            raise LengthUnknown(f"a {type(dataset).__name__} has none")
        return Count(len(dataset))
    if dataset._length is not None and not exact:
        return Count(dataset._length)
    each = [replace(context, worker=worker, workers=workers or 1) for worker in range(workers or 1)]
    return sum((count_in(dataset, context, exact) for context in each), Count(0, 0))


def count_behind(stages: Sequence[Any], epochs: Epochs, count: Count) -> Count:
    """How many elements stages make of ``count`` elements for each of their runs, or LengthUnknown."""
    for stage in stages:
        count = count_of(stage, count)
    if count.elements == 0:
        return count
    limit = epochs.limit
    if epochs.repetitions is not None:
        repeated = count.times(epochs.repetitions)
        if limit is None or repeated.elements <= limit:
            return repeated
    if limit is None:
        raise LengthUnknown("repeat() has no end")
    return Count(limit)


def count_in(pipeline: DataPipeline, context: Context, exact: bool = True) -> Count:
    """How many elements one worker makes, or LengthUnknown."""
    (origin, *stages), epochs = pipeline.parts, pipeline._epochs
    if getattr(origin, "never_empty", False) and epochs.repetitions is None and epochs.limit is not None:
        return Count(epochs.limit)
    if isinstance(origin, DataPipeline):
        count = count_in(origin, context, exact)
    elif hasattr(origin, "count_in"):
        count = Count(origin.count_in(context))
    elif hasattr(origin, "described_in") and not exact:
        count = origin.described_in(context)
    else:
        raise LengthUnknown(f"{origin} does not tell how many elements it has")
    return count_behind(stages, epochs, count)
