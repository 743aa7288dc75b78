"""The base of all stages: a configuration that makes a stream from a stream, and a function of iterables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.passing import Passing
from mpwds.pipeline.randomness import States, put_aside, put_back
from mpwds.pipeline.stream import Stream
from mpwds.tracebacks import shorten


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
        return plain(self.stream(Passing(source), Context.current()))


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
        except Exception as error:
            shorten(error)
            raise
        finally:
            if outermost:
                put_aside.states = None
                if mine:
                    put_back(mine)
                    mine.clear()
        yield element
