"""The base of all stages: a configuration that makes a stream from a stream, and a function of iterables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.counts import Count, LengthUnknown
from mpwds.pipeline.passing import Passing
from mpwds.pipeline.randomness import States, put_aside, put_back
from mpwds.pipeline.stream import Stream


class Filter(ABC):
    """A stage. Called with an iterable it yields what it makes of the plain elements, as webdataset's do.

    A stage answers for itself. Loaders ask any object with a method ``stream``, a subclass of this class or
    not, for these members, each of which may be left out:

    - ``__str__``: its name in errors and statistics; the name of its class if it has none.
    - ``count_of(incoming)``: how many elements it makes of so many, a :class:`~mpwds.pipeline.counts.Count`.
      It raises :class:`~mpwds.pipeline.counts.LengthUnknown` if it cannot know. A loader's ``len()`` and
      epochs of equal length on all ranks need it.
    - ``samples_in(element)``: the number of samples in an element that it yields, for statistics. A stage
      without it yields elements of as many samples as the stage before.
    - ``addressable``: ``False`` if its stream cannot fetch an element again by its address. Loaders then
      resume an epoch by running it again from its start.
    - ``reads_shards``: ``True`` if it reads storage.

    What its stream holds is in the stream's state: see :meth:`mpwds.pipeline.stream.Stream.state_dict`.

    Example:
        >>> from mpwds.pipeline.counts import Count
        >>> from mpwds.pipeline.dataset import DataPipeline
        >>> from mpwds.pipeline.stages.flatmap import Flatmap
        >>> class Twice(Filter):
        ...     def stream(self, source, context=ALONE):
        ...         return Flatmap(lambda element: [element, element]).stream(source, context)
        ...     def count_of(self, incoming):
        ...         return Count(2 * incoming.elements)
        ...     def samples_in(self, element):
        ...         return 1
        >>> list(Twice()("ab"))
        ['a', 'a', 'b', 'b']
        >>> from mpwds import MultiLoader
        >>> len(MultiLoader(DataPipeline("ab").compose(Twice()), workers=2))
        4
    """

    @abstractmethod
    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        """The stream of what the stage makes of ``source``."""

    def count_of(self, incoming: Count) -> Count:
        """How many elements the stage makes of ``incoming``.

        Raises:
            LengthUnknown: The stage cannot know that, which is the default.
        """
        raise LengthUnknown(f"{self} may drop or add elements")

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
        finally:
            if outermost:
                put_aside.states = None
                if mine:
                    put_back(mine)
                    mine.clear()
        yield element
