"""Make stages of functions that take a source and arguments."""

from __future__ import annotations

import functools
import importlib
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from mpwds.pipeline.filter import Filter, Generator
from mpwds.pipeline.notes import arguments
from mpwds.pipeline.parts import as_stage
from mpwds.pipeline.stream import Stage


def pipelinefilter(f: Callable[..., Iterator[Any]]) -> PipelineFilter:
    """Decorator that turns ``f(source, *args, **kw)`` into a function ``f(*args, **kw)`` that makes a stage.

    The stage's elements have no addresses: see ``mpwds.pipeline.filter.Generator``. If ``f`` makes several
    elements of each, use ``flatmap``, whose elements have.

    Args:
        f: Takes an iterator of elements and arguments, returns an iterator of elements.

    Raises:
        TypeError: ``f`` cannot be called.

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
    """The function that ``pipelinefilter`` makes; it makes a stage.

    Args:
        function: Takes an iterator of elements and arguments, returns an iterator of elements.

    Raises:
        TypeError: ``function`` cannot be called.

    Example:
        >>> print(PipelineFilter(zip)("abc"))
        zip('abc')
    """

    def __init__(self, function: Callable[..., Iterator[Any]]) -> None:
        if not callable(function):
            raise TypeError(f"pipelinefilter: expected a function of a source, got {function!r}")
        self.function = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **options: Any) -> CurriedStage:
        return CurriedStage(Curried(self, args, options))

    def __repr__(self) -> str:
        return f"pipelinefilter({arguments(self.function)})"

    def __reduce__(self) -> Any:
        # By its name, where that finds it, as functions are: its own function's name finds this object.
        name, module = getattr(self, "__qualname__", ""), getattr(self, "__module__", "")
        if module != "__main__" and _found(module, name) is self:
            return name
        return PipelineFilter, (self.function,)


@dataclass(frozen=True)
class Curried:
    """Function of a source: ``filter.function`` with the arguments behind the source.

    Args:
        filter: Gives the function.
        args: Its arguments after the first.
        options: Its named arguments.

    Example:
        >>> list(Curried(PipelineFilter(zip), ("ab",), {})("xy"))
        [('x', 'a'), ('y', 'b')]
    """

    filter: PipelineFilter
    args: tuple[Any, ...]
    options: dict[str, Any]

    def __call__(self, source: Iterator[Any]) -> Iterator[Any]:
        return self.filter.function(source, *self.args, **self.options)

    def __str__(self) -> str:
        name = getattr(self.filter, "__name__", repr(self.filter.function))
        return f"{name}({arguments(*self.args, **self.options)})"


class CurriedStage(Generator):
    """Stage that yields what a ``Curried`` function makes of its source's plain elements.

    Example:
        >>> from mpwds.pipeline.stream import collect
        >>> collect(CurriedStage(Curried(PipelineFilter(zip), ("ab",), {})), "xy")
        [('x', 'a'), ('y', 'b')]
    """

    def __str__(self) -> str:
        return str(self.function)


class PipelineStage:
    """Base of user's classes that are stages by a method ``run(source)``, as in webdataset.

    Their elements have no addresses: see ``mpwds.pipeline.filter.Generator``.

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
        """The iterator of the elements that the stage makes."""
        raise NotImplementedError(f"{type(self).__name__} is a pipeline stage without a method run(source)")

    def __call__(self, *source: Any) -> Any:
        return self.run(*source)


def stage_of(f: Any, *args: Any, **keywords: Any) -> Stage:
    """The stage that ``.pipe(f, *args, **keywords)`` adds.

    Args:
        f: A stage; a function or class that makes one, as its annotations tell; or a generator function of
            an iterator of elements.
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


def _found(module: str, name: str) -> Any:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError):  # ValueError: the module has no name
        return None
    return found
