"""The parts of a pipeline, made of what users give: a source, and the stages behind it."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Generator, plain
from mpwds.pipeline.sources.elements import Indexed, Iterated
from mpwds.pipeline.sources.splitting import Splitter
from mpwds.pipeline.stream import PipelineSource, Stage, Stream
from mpwds.pipeline.torch_dataset import TorchIterable

_PARTS = 1000


class IterableSource(TorchIterable, ABC):
    """Base of sources that can also be iterated by themselves.

    Each ``iter()`` is another epoch. A subclass has a method ``stream(context)``. It may tell loaders how
    many elements a worker gets, by a method ``count_in(context)``, and by ``never_empty`` that no worker gets
    none.
    """

    _epoch = 0
    _epoch_is_given = False

    @abstractmethod
    def stream(self, context: Context = ALONE) -> Stream[Any]:
        """The stream of one epoch."""

    def __iter__(self) -> Iterator[Any]:
        epoch = self._epoch
        self._epoch = epoch + 1
        context = Context.current(epoch)
        return plain(self.stream(replace(context, run=0) if self._epoch_is_given else context))

    def set_epoch(self, epoch: int) -> None:
        """Makes the next ``iter()`` run epoch ``epoch``."""
        self._epoch = epoch
        self._epoch_is_given = True


def as_source(source: Any) -> PipelineSource:
    """The source of a pipeline, from what a user gave.

    Args:
        source: An object with a method ``stream(context)``; or a sequence or map-style dataset, with a length
            and elements by index; or another iterable; or a function that returns an iterator.

    Raises:
        TypeError: ``source`` is none of these, or an iterator, which could be read only once.

    Example:
        >>> list(plain(as_source(lambda: iter("ab")).stream()))
        ['a', 'b']
    """
    if hasattr(source, "stream") and not iterates_itself(source):
        with_stream: PipelineSource = source
        return with_stream
    if isinstance(source, Mapping):
        raise TypeError(
            "a pipeline cannot begin at a dict: write mpwds.WebDataset(spec) for a dataset specification, "
            "DataPipeline([sample]) for a sample"
        )
    data = sys.modules.get("torch.utils.data")
    iterable = data is not None and isinstance(source, (data.IterableDataset, data.DataLoader))
    if not iterable and hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return Indexed(source)
    return Iterated(source)


def iterates_itself(dataset: Any) -> bool:
    """Whether a dataset's class overrides ``__iter__`` without overriding ``stream``.

    Such a dataset is iterated, so that its own ``__iter__`` counts.

    Example:
        >>> class Doubled(IterableSource):
        ...     def stream(self, context=ALONE):
        ...         return Indexed([1, 2]).stream(context)
        >>> class Tripled(Doubled):
        ...     def __iter__(self):
        ...         return (3 * n for n in (1, 2))
        >>> iterates_itself(Doubled()), iterates_itself(Tripled())
        (False, True)
    """
    for kind in type(dataset).__mro__:
        if "stream" in vars(kind):
            return False
        if "__iter__" in vars(kind):
            return True
    return False


def as_stage(stage: Any) -> Stage:
    """A stage, from what a user gave: an object with a method ``stream(source, context)`` or a function.

    Raises:
        TypeError: ``stage`` is neither, or can only be the source of a pipeline.

    Example:
        >>> as_stage(reversed)
        Generator(function=<class 'reversed'>)
    """
    if isinstance(stage, TorchIterable):
        raise TypeError(f"{stage} gives elements: it can only stand at the beginning of a pipeline")
    if hasattr(stage, "stream"):
        configured: Stage = stage
        return configured
    return Generator(stage)


def as_stages(stages: list[Any]) -> tuple[Stage, ...]:
    """The stages of a pipeline. Functions before a reader of shards become stages that keep the addresses."""
    configured = [as_stage(stage) for stage in stages]
    readers = [number for number, stage in enumerate(configured) if getattr(stage, "reads_shards", False)]
    for number in range(max(readers, default=0)):
        stage = configured[number]
        if isinstance(stage, Generator):
            configured[number] = Splitter(stage.function)
    return tuple(configured)


def culprit(part: Any) -> str | None:
    """The name of the part of a source or stage that gives elements without addresses, or ``None``.

    Example:
        >>> culprit(as_source({1, 2})), culprit(as_source([1, 2]))
        ('set', None)
    """
    parts = getattr(part, "parts", None)
    if parts is not None:
        return next(filter(None, map(culprit, parts)), None)
    return None if getattr(part, "addressable", True) else str(part)


def in_any_order(part: Any) -> bool:
    """Whether a source or stage takes elements as they appear, so that workers cannot keep an order.

    Example:
        >>> in_any_order(as_source([1, 2]))
        False
    """
    parts = getattr(part, "parts", None)
    return any(map(in_any_order, parts)) if parts is not None else getattr(part, "in_any_order", False)


def within(context: Context, position: int) -> Context:
    """The context of one part of a pipeline: its number gives it random numbers of its own.

    Args:
        context: The pipeline's context.
        position: The part's position in the pipeline, from 0.

    Example:
        >>> within(within(Context(), 0), 1).stage
        1002
    """
    return replace(context, stage=context.stage * _PARTS + position + 1)
