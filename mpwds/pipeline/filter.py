"""The base of all stages, and the stage that a generator function is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.counts import Count, LengthUnknown
from mpwds.pipeline.iterator_streams import IteratorStream, UnseekableStream
from mpwds.pipeline.notes import arguments
from mpwds.pipeline.randomness import States, put_aside, put_back
from mpwds.pipeline.stream import Stream
from mpwds.tracebacks import shorten


class Filter(ABC):
    """A stage. Called with an iterable, it yields the elements that it makes of the iterable's.

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
    - ``row_step``: a :class:`~mpwds.pipeline.counts.RowStep`, or ``None``. Loaders run three stages that
      unbatch, shuffle and batch as one, for whole batches at a time.

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
