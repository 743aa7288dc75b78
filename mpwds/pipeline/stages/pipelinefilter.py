"""Make stages of functions that take a source and arguments."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from mpwds.pipeline.filter import Filter
from mpwds.pipeline.notes import arguments, check_function
from mpwds.pipeline.parts import Generator, as_stage
from mpwds.pipeline.stream import Stage


def pipelinefilter(f: Callable[..., Iterator[Any]]) -> PipelineFilter:
    """Decorator that turns ``f(source, *args, **kw)`` into a function ``f(*args, **kw)`` that makes a stage.

    ``f`` takes an iterator of elements and returns one. The stage's elements have no addresses (see
    ``mpwds.pipeline.parts.Generator``), unlike those of ``flatmap``.

    Source:
        ``webdataset.filters.pipelinefilter``.

    Example:
        >>> @pipelinefilter
        ... def every(source, n):
        ...     for index, element in enumerate(source):
        ...         if index % n == 0:
        ...             yield element
        >>> list(every(2)("abcde"))
        ['a', 'c', 'e']
    """
    return PipelineFilter(f)


class PipelineFilter:
    """The function that ``pipelinefilter`` makes; it makes a stage."""

    def __init__(self, function: Callable[..., Iterator[Any]]) -> None:
        check_function("pipelinefilter", function, "a function of a source")
        self.function = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **options: Any) -> Generator:
        name = getattr(self, "__name__", repr(self.function))
        return Generator(_Curried(self, args, options), f"{name}({arguments(*args, **options)})")

    def __repr__(self) -> str:
        return f"pipelinefilter({arguments(self.function)})"

    def __reduce__(self) -> Any:
        # Pickled by name, as functions are, if that name finds this object and not the decorated function.
        name, module = getattr(self, "__qualname__", ""), getattr(self, "__module__", "")
        try:
            by_name = module != "__main__" and attrgetter(name)(sys.modules[module]) is self
        except (KeyError, AttributeError):
            by_name = False
        return name if by_name else (PipelineFilter, (self.function,))


@dataclass(frozen=True)
class _Curried:
    """Function of a source: ``filter.function`` with the arguments after the source."""

    filter: PipelineFilter
    args: tuple[Any, ...]
    options: dict[str, Any]

    def __call__(self, source: Iterator[Any]) -> Iterator[Any]:
        return self.filter.function(source, *self.args, **self.options)


class PipelineStage:
    """Base of your own stage classes with a method ``run(source)``, as in webdataset.

    The elements have no addresses: see ``mpwds.pipeline.parts.Generator``.

    Source:
        ``webdataset.utils.PipelineStage``.

    Example:
        >>> class Twice(PipelineStage):
        ...     def run(self, source):
        ...         for element in source:
        ...             yield from (element, element)
        >>> from mpwds import DataPipeline
        >>> list(DataPipeline("ab", Twice()))
        ['a', 'a', 'b', 'b']
    """

    def run(self, source: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} is a pipeline stage without a method run(source)")

    def __call__(self, *source: Any) -> Any:
        return self.run(*source)


def stage_of(f: Any, *args: Any, **keywords: Any) -> Stage:
    """The stage that ``.pipe(f, *args, **keywords)`` adds.

    ``f`` is a stage; a function or class that makes one, as its annotations tell; or a generator function.
    """
    if hasattr(f, "stream") and not isinstance(f, type):
        if args or keywords:
            raise TypeError(f"pipe: {f} is a stage already: it takes no arguments here")
        return as_stage(f)
    if _makes_a_stage(f):
        return as_stage(f(*args, **keywords))
    check_function("pipe", f, "a stage or a generator function of an iterator")
    return pipelinefilter(f)(*args, **keywords) if args or keywords else as_stage(f)


def _makes_a_stage(f: Any) -> bool:
    if isinstance(f, type):
        return issubclass(f, (Filter, PipelineStage))
    if isinstance(f, PipelineFilter):
        return True
    try:
        only = SimpleNamespace(__annotations__={"return": f.__annotations__["return"]})
        result = typing.get_type_hints(only, inspect.unwrap(f).__globals__)["return"]
    except Exception:  # no annotation, or one that only a type checker can resolve
        return False
    kinds = typing.get_args(result) or (result,)
    return all(isinstance(kind, type) and issubclass(kind, Filter) for kind in kinds)
