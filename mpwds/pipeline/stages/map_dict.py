"""Apply functions to fields of dict samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.counts import Count, one_of_each
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.handled import Applied
from mpwds.pipeline.handlers import Handler, check_handler, reraise_exception
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.randomness import seeded
from mpwds.pipeline.stages.fields import check_sample, missing
from mpwds.pipeline.stream import Stream


def map_dict(handler: Handler = reraise_exception, **functions: Callable[[Any], Any]) -> MapDict:
    """Stage that replaces fields of dict samples by functions of them.

    The sample is copied first (not its values): the source's dict stays as it is.

    Args:
        handler: What to do about a sample that a function fails on; raises by default.
        functions: For each field, a function of its value.

    Raises:
        ValueError: There are no functions.
        TypeError: A function cannot be called; or, while iterating, a sample is not a dict.
        KeyError: While iterating, a sample lacks the field.

    Source:
        ``webdataset.filters.map_dict``.

    Example:
        >>> list(map_dict(cls=int)([{"cls": "7", "id": "a"}]))
        [{'cls': 7, 'id': 'a'}]
    """
    return MapDict(functions, handler)


@dataclass(frozen=True)
class MapDict(Filter):
    """The stage that ``map_dict`` makes."""

    functions: dict[str, Callable[[Any], Any]]
    handler: Handler = reraise_exception

    def __post_init__(self) -> None:
        if not self.functions:
            raise ValueError("map_dict: no functions given; write map_dict(cls=int), for example")
        for field, function in self.functions.items():
            if not callable(function):
                raise TypeError(f"map_dict: expected a function for {field!r}, got {function!r}")
        check_handler("map_dict", self.handler)

    def __str__(self) -> str:
        more = options(handler=(self.handler, reraise_exception))
        return f"map_dict({arguments(**self.functions, **more)})"

    def count_of(self, incoming: Count) -> Count:
        return one_of_each(self, incoming, self.handler)

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return Applied(source, self, self._apply, seeded(context), self.handler)

    def _apply(self, sample: Any) -> dict[Any, Any]:
        check_sample("map_dict", sample)
        result = dict(sample)
        for field, function in self.functions.items():
            if field not in sample:
                raise KeyError(f"map_dict: {missing(sample, [field])}")
            result[field] = function(sample[field])
        return result
