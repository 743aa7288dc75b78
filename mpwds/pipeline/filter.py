"""The base of all stages, and the stage that a generator function is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.iterator_streams import IteratorStream, UnseekableStream
from mpwds.pipeline.notes import arguments
from mpwds.pipeline.randomness import States, put_aside, put_back
from mpwds.pipeline.stream import Stream


class Filter(ABC):
    """A stage. Called with an iterable, it yields the elements that it makes of the iterable's.

    Example:
        >>> from mpwds.pipeline.stages.map import Map
        >>> list(Map(str.upper)("abc"))
        ['A', 'B', 'C']
    """

    @abstractmethod
    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        """The stream of what the stage makes of ``source``."""

    def __call__(self, source: Iterable[Any]) -> Iterator[Any]:
        return plain(self.stream(IteratorStream(source), Context.current()))


def plain(stream: Stream[Any]) -> Iterator[Any]:
    """The elements of a stream without their addresses.

    Whenever it yields an element, the program's random generators are as the program left them: see
    ``seeded`` in ``mpwds.pipeline.randomness``.
    """
    advance = stream.__next__
    mine: States = []
    while True:
        outermost = put_aside.states is None
        if outermost:
            put_aside.states = mine
        try:
            _, element = advance()
        except StopIteration:
            return
        finally:
            if outermost:
                put_aside.states = None
                if mine:
                    put_back(mine)
                    mine.clear()
        yield element


@dataclass(frozen=True)
class Generator(Filter):
    """Stage that yields what ``function(source)`` yields, ``source`` being the plain elements before it.

    Use it where ``map``, ``select`` and ``flatmap`` do not suffice. Its elements have no addresses: a
    pipeline with such a stage is restored by running it again from the start of the epoch. Random numbers
    that ``function`` draws are the same in each run of an epoch by the same worker.

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
        return UnseekableStream(lambda: self.function(plain(source)), self, context)
