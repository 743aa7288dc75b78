"""Processor and ``.pipe``: a stage from a function and its arguments, as webdataset's earlier API has it."""

from __future__ import annotations

import typing
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from mpwds.pipeline.beginnings import as_stage
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.stages.pipelinefilter import PipelineFilter, PipelineStage, pipelinefilter
from mpwds.pipeline.stream import Stage, Stream


class Processor:
    """A stage that is called with a dataset and returns the dataset with that stage behind it.

    ``Processor(f, *args, **keywords)(source)`` is ``DataPipeline(source).pipe(f, *args, **keywords)``. The
    first generation wrote ``Processor(source, f, *args, **keywords)``, which does the same at once. A
    processor is a stage as well: ``DataPipeline(source, Processor(f))``.

    Args:
        f: A stage; or a function that makes one (``mpwds.shuffle``); or a generator function
            ``f(elements, *args, **keywords)``, whose elements have no address (see
            ``mpwds.pipeline.generator``).
        args: Its further arguments.
        keywords: Its keyword arguments.

    Raises:
        TypeError: ``f`` is nothing of that kind, or does not take these arguments.

    Example:
        >>> from mpwds.pipeline.stages.batched import batched
        >>> def repeated(elements, times):
        ...     for element in elements:
        ...         yield from [element] * times
        >>> list(Processor(repeated, times=2)(["a", "b"]))
        ['a', 'a', 'b', 'b']
        >>> dataset = Processor(batched, 2, collation_fn=None)(range(3))
        >>> list(Processor(dataset, repeated, 2))
        [[0, 1], [0, 1], [2], [2]]
    """

    def __new__(cls, *arguments: Any, **keywords: Any) -> Any:
        if arguments and _is_source(arguments[0]):
            source, *rest = arguments
            return _dataset(source, stage_of(*rest, **keywords))
        return super().__new__(cls)

    def __init__(self, f: Any, *args: Any, **keywords: Any) -> None:
        self._stage = stage_of(f, *args, **keywords)
        self.addressable: bool = getattr(self._stage, "addressable", True)

    def __str__(self) -> str:
        return str(self._stage)

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return self._stage.stream(source, context)

    def __call__(self, source: Any) -> Any:
        """The dataset of what the stage makes of ``source``, anything that ``DataPipeline`` begins at."""
        return _dataset(source, self._stage)


def stage_of(f: Any, *args: Any, **keywords: Any) -> Stage:
    """The stage that ``.pipe(f, *args, **keywords)`` adds.

    Args:
        f: As :class:`Processor` takes it. A function makes a stage if its result is annotated as one.
        args: Its further arguments.
        keywords: Its keyword arguments.

    Raises:
        TypeError: ``f`` is neither a stage nor callable, or is a stage and there are arguments.

    Example:
        >>> from mpwds.pipeline.stages.shuffle import shuffle
        >>> print(stage_of(shuffle, 100, seed=1), stage_of(zip, "abc"))
        shuffle(100, seed=1) zip('abc')
    """
    if hasattr(f, "stream") and not isinstance(f, type):
        if args or keywords:
            raise TypeError(f"pipe: {f} is a stage already: it takes no arguments here")
        return as_stage(f)
    if _makes_a_stage(f):
        return as_stage(f(*args, **keywords))
    if not callable(f):
        raise TypeError(f"pipe: expected a stage or a generator function of an iterator, got {f!r}")
    return pipelinefilter(f)(*args, **keywords) if args or keywords else as_stage(f)


def _makes_a_stage(f: Any) -> bool:
    if isinstance(f, type):
        return issubclass(f, (Filter, PipelineStage))
    if isinstance(f, PipelineFilter):
        return True
    try:
        only = SimpleNamespace(__annotations__={"return": f.__annotations__["return"]})
        result = typing.get_type_hints(only, f.__globals__)["return"]
    except Exception:  # no annotation, or one that only a type checker can resolve
        return False
    kinds = typing.get_args(result) or (result,)
    return all(isinstance(kind, type) and issubclass(kind, Filter) for kind in kinds)


def _dataset(source: Any, stage: Stage) -> Any:
    from mpwds.pipeline.dataset import DataPipeline  # which has .pipe, and so imports this module

    return DataPipeline(source, stage)


def _is_source(first: Any) -> bool:
    """Whether it is a dataset, no function and no stage."""
    return isinstance(first, Iterable) or not callable(first)
