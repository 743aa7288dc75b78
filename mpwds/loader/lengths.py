"""How many elements a loader delivers, where that can be known without running it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mpwds.loader.rebatched import Rebatched
from mpwds.pipeline.collation.collate import default_collation_fn
from mpwds.pipeline.collation.padded import Padded
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.epochs import Epochs
from mpwds.pipeline.handlers import reraise_exception
from mpwds.pipeline.sources.elements import Indexed
from mpwds.pipeline.stages.batched import Batched
from mpwds.pipeline.stages.detshuffle import Detshuffle
from mpwds.pipeline.stages.shuffle import Shuffle
from mpwds.pipeline.stages.slice import Slice
from mpwds.pipeline.stages.unbatched import Unbatched


@dataclass(frozen=True)
class Count:
    """Elements of an epoch; and, where they are batches, rows of all of them."""

    elements: int
    rows: int | None = None

    def __add__(self, other: Count) -> Count:
        known = self.rows is not None and other.rows is not None
        return Count(self.elements + other.elements, (self.rows or 0) + (other.rows or 0) if known else None)

    def times(self, number: int) -> Count:
        return Count(self.elements * number, None if self.rows is None else self.rows * number)


def count_delivered(dataset: Any, workers: int) -> Count:
    """What a loader with this dataset delivers to this rank.

    Args:
        dataset: What ``as_dataset`` returned. One that is no pipeline of ours is taken at its word, its
            ``len()``.
        workers: The loader's workers.

    Raises:
        TypeError: It cannot be known; the message says because of what.

    Example:
        >>> count_delivered(DataPipeline(range(10)).batched(4), workers=2)
        Count(elements=4, rows=10)
    """
    if not isinstance(dataset, DataPipeline):
        if not hasattr(dataset, "__len__"):
            raise _unknown(f"a {type(dataset).__name__} has none")
        return Count(len(dataset))
    if dataset._length is not None:
        return Count(dataset._length)
    here = Context.current()
    total = Count(0, 0)
    for worker in range(max(workers, 1)):
        total += _count_in(dataset, replace(here, worker=worker, workers=max(workers, 1)))
    return total


def count_behind(stages: Sequence[Any], epochs: Epochs, count: Count) -> Count:
    """What stages make of so many elements.

    Args:
        stages: The stages, in order.
        epochs: How often they run, and after how many elements the epoch ends.
        count: What they get when they run once.

    Raises:
        TypeError: It cannot be known; the message says because of what.

    Example:
        >>> count_behind([Rebatched(3)], Epochs(), Count(elements=4, rows=10))
        Count(elements=4, rows=10)
    """
    for stage in stages:
        count = _behind(stage, count)
    if count.elements == 0:
        return count
    if epochs.repetitions is None:
        if epochs.limit is None:
            raise _unknown("repeat() has no end")
        return Count(epochs.limit)
    repeated = count.times(epochs.repetitions)
    if epochs.limit is None or repeated.elements <= epochs.limit:
        return repeated
    return Count(epochs.limit)


def _count_in(pipeline: DataPipeline, context: Context) -> Count:
    origin, *stages = pipeline.parts
    if isinstance(origin, DataPipeline):
        count = _count_in(origin, context)
    elif isinstance(origin, Indexed):
        indices = range(len(origin.elements))[context.rank :: context.world_size]
        count = Count(len(indices[context.worker :: context.workers]))
    else:
        raise _unknown(f"{origin} does not tell how many elements it has")
    return count_behind(stages, pipeline._epochs, count)


def _behind(stage: Any, count: Count) -> Count:
    elements, rows = count.elements, count.rows
    if isinstance(stage, (Shuffle, Detshuffle)):
        return count
    if isinstance(stage, Slice):
        stop = elements if stage.stop is None else min(stage.stop, elements)
        return Count(len(range(stage.start, stop, stage.step)))
    if getattr(stage, "handler", reraise_exception) is reraise_exception:
        if isinstance(stage, Batched):
            batches = _batches(elements, stage.batchsize, not stage.partial)
            keeps_rows = stage.collation_fn is default_collation_fn or isinstance(stage.collation_fn, Padded)
            return Count(batches, min(elements, batches * stage.batchsize) if keeps_rows else None)
        if isinstance(stage, (Unbatched, Rebatched)):
            if rows is None:
                raise _unknown(f"{stage} gets batches of which nobody knows how many rows they have")
            if isinstance(stage, Unbatched):
                return Count(rows)
            batches = _batches(rows, stage.batchsize, stage.drop_last)
            return Count(batches, min(rows, batches * stage.batchsize))
    raise _unknown(f"{stage} may drop or add elements")


def _batches(rows: int, size: int, whole_ones: bool) -> int:
    return rows // size if whole_ones else -(-rows // size)


def _unknown(reason: str) -> TypeError:
    return TypeError(
        f"the number of elements in an epoch is not known: {reason}. with_length(n) says what len() returns, "
        "with_epoch(n) makes an epoch of n elements"
    )
