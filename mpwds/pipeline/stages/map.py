"""Apply functions to elements: ``map`` and ``map_tuple``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.error_context import check_function
from mpwds.pipeline.filter import MapStage, OneToOneStage
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.suggestions import suggest_arguments


@suggest_arguments
def map(
    f: Callable[[Any], Any], handler: Handler = reraise_exception, *, threads: int = 1, in_order: bool = True
) -> Map:
    """Stage that yields ``f(element)`` for each element.

    Args:
        f: Takes an element and returns another; ``None`` drops the element. If it makes a dict without
            ``__key__`` from a dict sample, the dict gets the sample's ``__key__``. In one epoch, ``f`` draws
            the same random numbers each time it gets the same element.
        handler: Called when ``f`` raises an exception; the default raises it.
        threads: Calls of ``f`` that overlap, in threads of each worker, while as many elements are held. For
            functions that wait (for a network, a disk) or release the interpreter lock. If ``f`` is an
            ``async def`` function, so many of its calls overlap in one thread.
        in_order: Whether results keep the order of the elements. Otherwise the first result is next, and a
            loader takes batches as they come.

    Raises:
        ValueError: ``threads`` is below 1.
        SharedRandomError: While iterating, ``f`` draws from ``random``, ``numpy.random`` or torch in threads,
            which share these generators. Only the first call is checked, which is made alone.

    Source:
        ``webdataset.filters.map``.

    Example:
        >>> list(map(lambda n: n * n if n else None)(range(4)))
        [1, 4, 9]
    """
    return Map(f, handler, threads, in_order)


@suggest_arguments
def map_tuple(
    *functions: Callable[[Any], Any] | None,
    handler: Handler = reraise_exception,
    threads: int = 1,
    in_order: bool = True,
) -> MapTuple:
    """Stage that applies a function to each field of tuple samples.

    Args:
        functions: One for each field. ``None``, or no function, leaves a field unchanged.
        handler: Called when a function raises an exception; the default raises it.
        threads: Samples for which calls overlap; it and ``in_order`` are as for :func:`map`.
        in_order: Whether results keep the order of the samples.

    Raises:
        TypeError: While iterating, a sample is not a tuple.
        ValueError: While iterating, a tuple has fewer fields than there are functions.

    Source:
        ``webdataset.filters.map_tuple``.

    Example:
        >>> list(map_tuple(None, int)([("a", "7", "x")]))
        [('a', 7, 'x')]
    """
    return MapTuple(functions, handler, threads, in_order)


def transform_with(
    sample: Sequence[Any], transformers: Sequence[Callable[[Any], Any] | None] | None
) -> Sequence[Any]:
    """A list of a sample's fields, each transformed by the function at its place, as by :func:`map_tuple`.

    Without functions it is ``sample`` itself.

    Raises:
        ValueError: There are more functions than fields.

    Source:
        ``webdataset.filters.transform_with``.

    Example:
        >>> transform_with(("a", "7", "x"), [None, int])
        ['a', 7, 'x']
    """
    if not transformers:
        return sample
    if len(transformers) > len(sample):
        raise ValueError(f"{len(transformers)} functions for a sample of {len(sample)} fields")
    result = list(sample)
    for index, function in enumerate(transformers):
        if function is not None:
            result[index] = function(result[index])
    return result


@dataclass(frozen=True)
class Map(MapStage, called="map"):
    keeps_key = True
    function: Callable[[Any], Any]
    handler: Handler = reraise_exception
    threads: int = 1
    in_order: bool = True

    def prepared(self) -> Callable[[Any], Any]:
        return self.function


@dataclass(frozen=True)
class MapTuple(OneToOneStage, called="map_tuple"):
    functions: tuple[Callable[[Any], Any] | None, ...]
    handler: Handler = reraise_exception
    threads: int = 1
    in_order: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for function in self.functions:
            if function is not None:
                check_function("map_tuple", function, "functions or None")

    def apply(self, sample: Any) -> tuple[Any, ...]:
        if not isinstance(sample, (tuple, list)):
            raise TypeError(
                f"map_tuple needs tuple samples, got a {type(sample).__name__}; put to_tuple(...) before it"
            )
        return tuple(transform_with(sample, self.functions))
