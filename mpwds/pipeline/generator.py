"""A plain generator function as a stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Filter, plain
from mpwds.pipeline.notes import arguments
from mpwds.pipeline.stream import Stream
from mpwds.pipeline.unaddressed import Unaddressed


@dataclass(frozen=True)
class Generator(Filter):
    """Stage that yields what ``function(source)`` yields, ``source`` being the plain elements before it.

    For what ``map``, ``select`` and ``flatmap`` cannot say. The price: its elements have no address, so a
    pipeline that has such a stage is restored by replaying it from the start of the epoch. Random
    numbers that ``function`` draws are the same in each run of an epoch by the same worker.

    Args:
        function: Takes an iterator of elements, returns an iterator of elements.

    Raises:
        TypeError: ``function`` cannot be called.

    Example:
        >>> from mpwds.pipeline.stream import collect
        >>> def doubled(source):
        ...     for element in source:
        ...         yield element
        ...         yield element
        >>> collect(Generator(doubled), "ab")
        ['a', 'a', 'b', 'b']
    """

    function: Callable[[Iterator[Any]], Iterator[Any]]
    addressable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(
                f"a stage is an object with a method stream(source, context) or a function of an iterator, "
                f"got {self.function!r}"
            )

    def __str__(self) -> str:
        return f"compose({arguments(self.function)})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return Unaddressed(lambda: self.function(plain(source)), self, context)
