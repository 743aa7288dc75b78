"""Apply functions to the fields of tuple samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.counts import Count, one_of_each
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.handled import Applied
from mpwds.pipeline.handlers import Handler, check_handler, reraise_exception
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.randomness import seeded
from mpwds.pipeline.stream import Stream


def map_tuple(*functions: Callable[[Any], Any] | None, handler: Handler = reraise_exception) -> MapTuple:
    """Stage that applies a function to each field of tuple samples.

    Args:
        functions: The first for the first field, and so on. ``None`` leaves a field as it is; so are fields
            left that come after the last function.
        handler: What to do about a sample that a function fails on; raises by default.

    Raises:
        TypeError: An argument is neither a function nor ``None``; or, while iterating, a sample is not a
            tuple.
        ValueError: While iterating, a tuple has fewer fields than there are functions.

    Source:
        ``webdataset.filters.map_tuple``.

    Example:
        >>> list(map_tuple(None, int)([("a", "7", "x")]))
        [('a', 7, 'x')]
    """
    return MapTuple(functions, handler)


@dataclass(frozen=True)
class MapTuple(Filter):
    """The stage that ``map_tuple`` makes."""

    functions: tuple[Callable[[Any], Any] | None, ...]
    handler: Handler = reraise_exception

    def __post_init__(self) -> None:
        for function in self.functions:
            if function is not None and not callable(function):
                raise TypeError(f"map_tuple: expected functions or None, got {function!r}")
        check_handler("map_tuple", self.handler)

    def __str__(self) -> str:
        more = options(handler=(self.handler, reraise_exception))
        return f"map_tuple({arguments(*self.functions, **more)})"

    def count_of(self, incoming: Count) -> Count:
        return one_of_each(self, incoming, self.handler)

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return Applied(source, self, self._apply, seeded(context), self.handler)

    def _apply(self, sample: Any) -> tuple[Any, ...]:
        if not isinstance(sample, (tuple, list)):
            raise TypeError(
                f"map_tuple needs tuple samples, got a {type(sample).__name__}; put to_tuple(...) before it"
            )
        return tuple(transform_with(sample, self.functions))


def transform_with(
    sample: Sequence[Any], transformers: Sequence[Callable[[Any], Any] | None] | None
) -> Sequence[Any]:
    """The fields of a sample, each through its function.

    Args:
        sample: The fields.
        transformers: The first function for the first field, and so on; ``None`` leaves a field as it is, and
            so do functions that are missing at the end.

    Returns:
        A list; ``sample`` itself if there are no functions.

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
