"""Apply a function to every element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.handled import Applied
from mpwds.pipeline.handlers import Handler, check_handler, reraise_exception
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.randomness import seeded
from mpwds.pipeline.stream import Stream


def map(f: Callable[[Any], Any], handler: Handler = reraise_exception) -> Map:
    """Stage that yields ``f(element)`` for each element.

    Args:
        f: Takes an element and returns another; ``None`` drops the element. A dict that it makes from a dict
            sample gets the sample's ``__key__`` if it has none. Random numbers that it draws are the same
            each time it sees this element in this epoch.
        handler: What to do about an element that ``f`` fails on; raises by default.

    Raises:
        TypeError: ``f`` or ``handler`` cannot be called.

    Source:
        ``webdataset.filters.map``.

    Example:
        >>> list(map(lambda n: n * n if n else None)(range(4)))
        [1, 4, 9]
    """
    return Map(f, handler)


@dataclass(frozen=True)
class Map(Filter):
    """The stage that ``map`` makes."""

    function: Callable[[Any], Any]
    handler: Handler = reraise_exception

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"map: expected a function, got {self.function!r}")
        check_handler("map", self.handler)

    def __str__(self) -> str:
        return f"map({arguments(self.function, **options(handler=(self.handler, reraise_exception)))})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return Applied(source, self, self._apply, seeded(context), self.handler)

    def _apply(self, element: Any) -> Any:
        key = key_of(element)  # looked up before the call: the function may take the sample apart
        return with_key(key, self.function(element))


def key_of(element: Any) -> Any:
    """The ``__key__`` of a dict sample; ``None`` of anything else.

    Example:
        >>> key_of({"__key__": "a"}), key_of((1, 2))
        ('a', None)
    """
    return element.get("__key__") if isinstance(element, dict) else None


def with_key(key: Any, result: Any) -> Any:
    """What was made of the sample ``key``: with that key, if it is a dict that has none.

    Example:
        >>> with_key("a", {"cls": 7}), with_key("a", (7,))
        ({'__key__': 'a', 'cls': 7}, (7,))
    """
    if key is not None and isinstance(result, dict) and "__key__" not in result:
        return {"__key__": key, **result}
    return result
