"""How many elements a loader delivers, where that can be known without running it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from mpwds.loader.rebatched import Rebatched
from mpwds.pipeline.beginnings import iterates_itself
from mpwds.pipeline.collation.collate import default_collation_fn
from mpwds.pipeline.collation.padded import Padded
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.epochs import Epochs
from mpwds.pipeline.handlers import reraise_exception
from mpwds.pipeline.sources.resampled import ResampledShards
from mpwds.pipeline.stages.batched import Batched
from mpwds.pipeline.stages.decode import Decode
from mpwds.pipeline.stages.detshuffle import Detshuffle
from mpwds.pipeline.stages.extract_keys import ExtractKeys
from mpwds.pipeline.stages.info import Info
from mpwds.pipeline.stages.log_keys import LogKeys
from mpwds.pipeline.stages.map_dict import MapDict
from mpwds.pipeline.stages.map_tuple import MapTuple
from mpwds.pipeline.stages.rename import Rename
from mpwds.pipeline.stages.rename_keys import RenameKeys
from mpwds.pipeline.stages.shuffle import Shuffle
from mpwds.pipeline.stages.slice import Slice
from mpwds.pipeline.stages.to_tuple import ToTuple
from mpwds.pipeline.stages.unbatched import Unbatched
from mpwds.pipeline.stages.xdecode import XDecode

_KEEP_THE_NUMBER = (
    Decode,
    Detshuffle,
    ExtractKeys,
    Info,
    LogKeys,
    MapDict,
    MapTuple,
    Rename,
    RenameKeys,
    Shuffle,
    ToTuple,
    XDecode,
)
_KEEP_THE_ROWS = (Detshuffle, Info, LogKeys, Shuffle)


class LengthUnknown(TypeError):
    """The number of elements in an epoch is not known.

    Args:
        reason: Because of what.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the number of elements in an epoch is not known: {reason}. with_length(n) says what len() "
            "returns, with_epoch(n) makes an epoch of n elements"
        )


class CountOf(Protocol):
    """Counts the elements of an epoch; the arguments are those of :func:`count_delivered`."""

    def __call__(self, context: Context, *, exact: bool = False) -> int: ...


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


def count_delivered(
    dataset: Any,
    workers: int,
    context: Context = ALONE,
    *,
    exact: bool = False,
) -> Count:
    """What a loader with this dataset delivers to a rank.

    Args:
        dataset: What ``as_dataset`` returned. One that is no pipeline of ours is taken at its word, its
            ``len()``.
        workers: The loader's workers.
        context: Epoch, seed and rank.
        exact: Take no dataset at its word, nor what ``with_length`` says.

    Raises:
        LengthUnknown: It cannot be known; the message says because of what.

    Example:
        >>> count_delivered(DataPipeline(range(10)).batched(4), workers=2)
        Count(elements=4, rows=10)
    """
    if not isinstance(dataset, DataPipeline) or iterates_itself(dataset):
        if exact or not hasattr(dataset, "__len__"):
            raise LengthUnknown(f"a {type(dataset).__name__} has none")
        return Count(len(dataset))
    if dataset._length is not None and not exact:
        return Count(dataset._length)
    total = Count(0, 0)
    for worker in range(max(workers, 1)):
        total += _count_in(dataset, replace(context, worker=worker, workers=max(workers, 1)))
    return total


def count_behind(stages: Sequence[Any], epochs: Epochs, count: Count) -> Count:
    """What stages make of so many elements.

    Args:
        stages: The stages, in order.
        epochs: How often they run, and after how many elements the epoch ends.
        count: What they get when they run once.

    Raises:
        LengthUnknown: It cannot be known; the message says because of what.

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
            raise LengthUnknown("repeat() has no end")
        return Count(epochs.limit)
    repeated = count.times(epochs.repetitions)
    if epochs.limit is None or repeated.elements <= epochs.limit:
        return repeated
    return Count(epochs.limit)


def _count_in(pipeline: DataPipeline, context: Context) -> Count:
    origin, *stages = pipeline.parts
    epochs = pipeline._epochs
    if isinstance(origin, ResampledShards) and epochs.repetitions is None and epochs.limit is not None:
        return Count(epochs.limit)  # all workers draw from all shards, so none is without
    if isinstance(origin, DataPipeline):
        count = _count_in(origin, context)
    elif hasattr(origin, "count_in"):
        count = Count(origin.count_in(context))
    else:
        raise LengthUnknown(f"{origin} does not tell how many elements it has")
    return count_behind(stages, epochs, count)


def _behind(stage: Any, count: Count) -> Count:
    elements, rows = count.elements, count.rows
    if isinstance(stage, Slice):
        stop = elements if stage.stop is None else min(stage.stop, elements)
        return Count(len(range(stage.start, stop, stage.step)))
    if getattr(stage, "handler", reraise_exception) is reraise_exception:
        if isinstance(stage, _KEEP_THE_NUMBER):
            return count if isinstance(stage, _KEEP_THE_ROWS) else Count(elements)
        if isinstance(stage, Batched):
            batches = _batches(elements, stage.batchsize, not stage.partial)
            keeps_rows = stage.collation_fn is default_collation_fn or isinstance(stage.collation_fn, Padded)
            return Count(batches, min(elements, batches * stage.batchsize) if keeps_rows else None)
        if isinstance(stage, (Unbatched, Rebatched)):
            if rows is None:
                raise LengthUnknown(f"{stage} gets batches of which nobody knows how many rows they have")
            if isinstance(stage, Unbatched):
                return Count(rows)
            batches = _batches(rows, stage.batchsize, stage.drop_last)
            return Count(batches, min(rows, batches * stage.batchsize))
    raise LengthUnknown(f"{stage} may drop or add elements")


def _batches(rows: int, size: int, whole_ones: bool) -> int:
    return rows // size if whole_ones else -(-rows // size)
