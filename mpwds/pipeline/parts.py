"""The parts of a pipeline: makes a source and stages of the objects that users pass."""

from __future__ import annotations

import functools
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Filter, plain
from mpwds.pipeline.iterator_streams import UnseekableStream
from mpwds.pipeline.notes import arguments
from mpwds.pipeline.sources.elements import Indexed, Iterated
from mpwds.pipeline.sources.splitting import Splitter
from mpwds.pipeline.stream import PipelineSource, Stage, Stream


class TorchIterable:
    """Base of datasets that torch's DataLoader treats as an ``IterableDataset``.

    Inheriting from torch's class would import torch in every process that uses a dataset. But DataLoader asks
    ``isinstance``, which also looks at ``__class__``: once torch is imported, that is a subclass of both.
    """

    @property
    def __class__(self) -> Any:
        data = sys.modules.get("torch.utils.data")
        base = getattr(data, "IterableDataset", None)  # absent while torch is being imported
        kind: Any = type(self)  # mypy finds no __hash__ in a type whose instances redefine __class__
        return kind if base is None else _both(kind, base)

    @__class__.setter
    def __class__(self, value: Any) -> None:
        raise TypeError(f"the class of a {type(self).__name__} cannot be changed")

    def __reduce__(self) -> Any:
        # By default pickle refuses an object whose __class__ is not its type.
        return _rebuilt, (type(self), self.__dict__)


class IterableSource(TorchIterable, ABC):
    """Base of pipelines, and of sources that can be iterated by themselves. Each ``iter()`` is another epoch.

    A source may have a method ``count_in(context)``, the number of elements that a worker gets, and an
    attribute ``never_empty``, true if every worker gets at least one.
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
        """Makes the next ``iter()`` run epoch ``epoch``, from 0.

        Example:
            >>> import mpwds
            >>> dataset = mpwds.DataPipeline(range(50)).shuffle(50)
            >>> first = list(dataset)
            >>> dataset.set_epoch(0)
            >>> list(dataset) == first != list(dataset)
            True
        """
        self._epoch = epoch
        self._epoch_is_given = True


def as_source(source: Any) -> PipelineSource:
    """Makes a source of a user's object, which is one of those that ``DataPipeline`` documents."""
    if hasattr(source, "stream") and not iterates_itself(source):
        with_stream: PipelineSource = source
        return with_stream
    if isinstance(source, Mapping):
        raise TypeError(
            "a dict cannot be the source of a pipeline: write mpwds.WebDataset(spec) for a dataset "
            "specification, DataPipeline([sample]) for a sample"
        )
    data = sys.modules.get("torch.utils.data")
    iterable = data is not None and isinstance(source, (data.IterableDataset, data.DataLoader))
    if not iterable and hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return Indexed(source)
    return Iterated(source)


def iterates_itself(dataset: Any) -> bool:
    """Whether a dataset's class overrides ``__iter__`` but not ``stream``, so that it must be iterated."""
    for kind in type(dataset).__mro__:
        if "stream" in vars(kind):
            return False
        if "__iter__" in vars(kind):
            return True
    return False


def as_stage(stage: Any) -> Stage:
    """Makes a stage of a user's object: one with a method ``stream(source, context)``, or a function."""
    if isinstance(stage, TorchIterable):
        raise TypeError(f"{stage} is a source, so it can only be the first part of a pipeline")
    if hasattr(stage, "stream"):
        configured: Stage = stage
        return configured
    return Generator(stage)


def as_stages(stages: list[Any]) -> tuple[Stage, ...]:
    """Makes the stages of a pipeline. Functions before a reader of shards keep the shards' addresses."""
    configured = [as_stage(stage) for stage in stages]
    readers = [number for number, stage in enumerate(configured) if getattr(stage, "reads_shards", False)]
    for number in range(max(readers, default=0)):
        stage = configured[number]
        if isinstance(stage, Generator):
            configured[number] = Splitter(stage.function)
    return tuple(configured)


@dataclass(frozen=True)
class Generator(Filter):
    """Stage that yields the elements of ``function(source)``, where ``source`` iterates over plain elements.

    Its elements have no addresses, so a pipeline with such a stage resumes by running again from the start of
    the epoch. ``function`` draws the same random numbers in each run of an epoch by the same worker.
    """

    function: Callable[[Iterator[Any]], Iterator[Any]]
    name: str | None = None
    addressable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(
                "a stage is an object with a method stream(source, context) or a function of an iterator, "
                f"got {self.function!r}"
            )

    def __str__(self) -> str:
        return self.name or f"compose({arguments(self.function)})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return UnseekableStream(lambda: self.function(plain(source)), self, context)


def culprit(part: Any) -> str | None:
    """The name of the part of a source or stage that gives elements without addresses, or ``None``."""
    parts = getattr(part, "parts", None)
    if parts is not None:
        return next(filter(None, map(culprit, parts)), None)
    return None if getattr(part, "addressable", True) else str(part)


def in_any_order(part: Any) -> bool:
    """Whether a source or stage takes elements as they appear, so that workers cannot keep an order."""
    parts = getattr(part, "parts", None)
    return any(map(in_any_order, parts)) if parts is not None else getattr(part, "in_any_order", False)


@functools.cache
def _both(kind: type, base: type) -> type:
    return type(
        kind.__name__, (kind, base), {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    )


def _rebuilt(kind: type, attributes: dict[str, Any]) -> Any:
    instance: Any = object.__new__(kind)
    instance.__dict__.update(attributes)
    return instance
