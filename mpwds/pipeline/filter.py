"""The base of all stages: a configuration that makes a stream from a stream, and a function of iterables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.place import Place
from mpwds.pipeline.randomness import States, put_aside, put_back
from mpwds.pipeline.stream import Address, Stream


class Filter(ABC):
    """A stage. Called with an iterable it yields what it makes of the plain elements, as webdataset's do.

    Example:
        >>> from mpwds.pipeline.stages.map import Map
        >>> list(Map(str.upper)("abc"))
        ['A', 'B', 'C']
    """

    @abstractmethod
    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        """The stream of what the stage makes of ``source``."""

    def __call__(self, source: Iterable[Any]) -> Iterator[Any]:
        return plain(self.stream(_Passing(source), Context.current()))


def plain(stream: Stream[Any]) -> Iterator[Any]:
    """The elements of a stream without their addresses.

    The random generators are as the program left them when an element is handed out: see ``seeded`` in
    ``mpwds.pipeline.randomness``.
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


class _Passing:
    """A stream over any iterable; its elements are counted, but cannot be made again."""

    def __init__(self, elements: Iterable[Any]) -> None:
        self._elements = iter(elements)
        self._count = 0

    def __iter__(self) -> _Passing:
        return self

    def __next__(self) -> tuple[Address, Any]:
        element = next(self._elements)
        self._count += 1
        return self._count - 1, element

    def fetch(self, address: Any) -> Any:
        raise LookupError("elements of a plain iterator cannot be fetched again")

    def describe(self, address: Any, element: object = None) -> Place:
        return Place.of_sample(element, Place(f"element {address}"))

    def state_dict(self) -> dict[str, Any]:
        raise LookupError("a plain iterator has no state to save")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise LookupError("a plain iterator has no state to load")
