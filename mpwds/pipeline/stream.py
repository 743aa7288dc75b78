"""What every stage speaks: addressed elements that can be made again, and state that fits in a message."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.place import Place

Address: TypeAlias = "int | str | tuple[Address, ...]"
"""Where an element comes from: ints, strings and tuples of them.

A tar sample's is ``(shard number, byte offset)``, a sequence element's its index, a batch's the tuple
of its parts'. Addresses go through JSON and msgpack, which turn the tuples into lists: ``as_address``
turns them back.
"""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

reached_end: Final = object()
"""Default for ``next(stream, reached_end)``: no element is this object."""


class Stream(Protocol[T_co]):
    """An iterator of ``(address, element)`` that can be asked for an element again and continued later.

    After its end it keeps raising ``StopIteration``. An exception that one element causes costs this
    element only: the next ``next()`` goes on behind it.
    """

    def __iter__(self) -> Stream[T_co]: ...

    def __next__(self) -> tuple[Address, T_co]: ...

    def fetch(self, address: Any) -> T_co:
        """The element at ``address``, made again: equal bit for bit, random augmentation included."""
        ...

    def describe(self, address: Any, element: object = None) -> Place:
        """What a person calls the element: ``sample "0017" of x-000003.tar``.

        Args:
            address: The element's address.
            element: The element, or what stages have made of it, where it is at hand.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Cursors, generator states and addresses, never data: what JSON and msgpack can hold.

        Two keys have a meaning that loaders rely on: ``"source"`` is the state of the stream drawn on, and
        ``"held"`` the addresses, in lists nested or not, of the elements of that stream that
        :meth:`load_state_dict` fetches. Of what it does not announce there, a stream behind a loader cannot
        be given again: the epoch is then run again from its start.
        """
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where the stream stood that gave ``state``; what it held is fetched again."""
        ...


class Stage(Protocol):
    """A configuration that makes a stream from a stream; :class:`~mpwds.pipeline.filter.Filter` says more."""

    def stream(self, source: Stream[Any], context: Context = ...) -> Stream[Any]: ...


class Origin(Protocol):
    """A configuration at which a pipeline begins."""

    def stream(self, context: Context = ...) -> Stream[Any]: ...


class Derived(ABC, Generic[T]):
    """Base of streams that draw on another stream and whose elements keep its addresses.

    Args:
        source: The stream drawn on. Reachable as ``_source``; ``_next`` is its ``__next__``.
    """

    def __init__(self, source: Stream[Any]) -> None:
        self._source = source
        self._next = source.__next__

    def __iter__(self) -> Derived[T]:
        return self

    @abstractmethod
    def __next__(self) -> tuple[Address, T]: ...

    def fetch(self, address: Any) -> T:
        element: T = self._source.fetch(address)
        return element

    def describe(self, address: Any, element: object = None) -> Place:
        return self._source.describe(address, element)

    def state_dict(self) -> dict[str, Any]:
        return {"source": self._source.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._source.load_state_dict(state["source"])


class Source(Generic[T]):
    """A stream over elements that are all there: the beginning of a pipeline in tests and examples.

    Args:
        iterable: The elements; an element's address is its index.

    Example:
        >>> stream = Source("abc")
        >>> next(stream), stream.fetch(2)
        ((0, 'a'), 'c')
    """

    def __init__(self, iterable: Iterable[T]) -> None:
        self._elements: Sequence[T] = tuple(iterable)
        self._cursor = 0

    def __iter__(self) -> Source[T]:
        return self

    def __next__(self) -> tuple[Address, T]:
        cursor = self._cursor
        if cursor >= len(self._elements):
            raise StopIteration
        self._cursor = cursor + 1
        return cursor, self._elements[cursor]

    def fetch(self, address: Any) -> T:
        index: int = address
        return self._elements[index]

    def describe(self, address: Any, element: object = None) -> Place:
        return Place.of_sample(element, Place(f"element {address}"))

    def state_dict(self) -> dict[str, Any]:
        return {"cursor": self._cursor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._cursor = state["cursor"]


def as_address(value: Any) -> Address:
    """An address as streams yield it, from one that may have been through JSON or msgpack.

    Example:
        >>> as_address([[3, 512], 7])
        ((3, 512), 7)
    """
    if isinstance(value, (list, tuple)):
        return tuple(map(as_address, value))
    address: int | str = value
    return address


def fetch_held(stream: Stream[T], addresses: Sequence[Any]) -> list[tuple[Address, T]]:
    """The elements at ``addresses``, in that order, fetched in the order of the addresses.

    A source reads forward that way and a batch whose rows are asked for is made once.
    """
    held = [as_address(address) for address in addresses]
    elements = {place: stream.fetch(held[place]) for place in sorted(range(len(held)), key=held.__getitem__)}
    return [(address, elements[place]) for place, address in enumerate(held)]


def collect(stage: Stage, iterable: Iterable[Any], context: Context = ALONE) -> list[Any]:
    """The plain elements that ``stage`` makes of those of ``iterable``.

    Args:
        stage: The stage to run.
        iterable: Its source's elements; their addresses are their indices.
        context: Where and when it runs; epoch 0 of a single process by default.

    Example:
        >>> from mpwds.pipeline.stages.batched import Batched
        >>> collect(Batched(2, collation_fn=None), "abc")
        [['a', 'b'], ['c']]
    """
    return [element for _, element in stage.stream(Source(iterable), context)]
