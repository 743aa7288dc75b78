"""Processor and ``.pipe``: a stage from a function and its arguments, as webdataset's earlier API has it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.stages.pipelinefilter import stage_of
from mpwds.pipeline.stream import Stream


class Processor:
    """A stage that is called with a dataset and returns the dataset with that stage behind it.

    ``Processor(f, *args, **keywords)(source)`` is ``DataPipeline(source).pipe(f, *args, **keywords)``. The
    first generation wrote ``Processor(source, f, *args, **keywords)``, which does the same at once. A
    processor is a stage as well: ``DataPipeline(source, Processor(f))``.

    Args:
        f: A stage; or a function that makes one (``mpwds.shuffle``); or a generator function
            ``f(elements, *args, **keywords)``.
        args: Its further arguments.
        keywords: Its keyword arguments.

    Raises:
        TypeError: ``f`` is none of these, or does not take these arguments.

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
            return DataPipeline(source, stage_of(*rest, **keywords))
        return super().__new__(cls)

    def __init__(self, f: Any, *args: Any, **keywords: Any) -> None:
        self._stage = stage_of(f, *args, **keywords)
        self.addressable: bool = getattr(self._stage, "addressable", True)

    def __str__(self) -> str:
        return str(self._stage)

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return self._stage.stream(source, context)

    def __call__(self, source: Any) -> Any:
        """The dataset of ``source``, anything that ``DataPipeline`` takes, with the stage behind it."""
        return DataPipeline(source, self._stage)


def _is_source(first: Any) -> bool:
    """Whether it is a dataset, no function and no stage."""
    return isinstance(first, Iterable) or not callable(first)
