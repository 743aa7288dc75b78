"""The protocol of stages: elements with addresses, which can be made again, and a small state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from mpwds.pipeline.context import ALONE, Context
from mpwds.suggestions import Suggesting

Address: TypeAlias = "int | str | tuple[Address, ...]"
"""Where an element comes from: a tar sample's is ``(shard number, byte offset)``, a sequence element's its
index, a batch's the tuple of its parts'. JSON and msgpack make lists of tuples: ``as_address`` undoes it.
"""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Self = TypeVar("Self", bound="Composable")

reached_end: Final = object()
"""Default for ``next(stream, reached_end)``: no element is this object."""


class Description(NamedTuple):
    """The description of an element, which prints as ``text``: ``sample "0017" of x-000003.tar``.

    ``offset`` is the byte offset of the sample's first header in the shard ``url``. If the element is a
    shard, ``listed`` is the list that it is in.
    """

    text: str
    url: str | None = None
    key: str | None = None
    offset: int | None = None
    listed: Sequence[str] | None = None

    def __str__(self) -> str:
        return self.text

    def row_of(self, row: str) -> Description:
        return Description(f"{row} of {self}", self.url, self.key, self.offset)

    @staticmethod
    def of_sample(sample: object, fallback: Description) -> Description:
        """The description by the ``__key__`` and ``__url__`` of ``sample``; ``fallback`` if it has none."""
        if not isinstance(sample, dict) or not isinstance(sample.get("__key__"), str):
            return fallback
        key, url = sample["__key__"], sample.get("__url__", fallback.url)
        shard = f" of {url}" if url else ""
        return Description(f'sample "{key}"{shard}', url, key, fallback.offset)


class Stream(Protocol[T_co]):
    """An iterator of ``(address, element)`` that can fetch an element again and resume from a state.

    After its end it keeps raising ``StopIteration``. After any other exception ``next()`` continues with the
    next element; a stream that the state is loaded into begins with the one that failed.
    """

    def __iter__(self) -> Stream[T_co]: ...

    @abstractmethod
    def __next__(self) -> tuple[Address, T_co]: ...

    @abstractmethod
    def fetch(self, address: Any) -> T_co:
        """The element at ``address``, made again: equal bit for bit, random augmentation included."""
        ...

    def describe(self, address: Any, element: object = None) -> Description:
        """Describes an element; ``element`` is it, or what a later stage made of it, if available."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Cursors, generator states and addresses, never data. Survives JSON and msgpack.

        It does not change while the stream goes on. Loaders rely on two keys. ``"source"`` is the state of
        the source stream. ``"held"`` lists the addresses (lists may be nested) of that stream's elements that
        :meth:`load_state_dict` fetches. If a stream after a loader fetches an element that is not listed
        there, the epoch runs again from its start. A third key, ``"unused"``, says that a stream takes any
        number of elements as held, in its first state, as if they came from its source. It is ``None`` or
        lists what is left of each: other ranks may go on with them after a loader with ``streams``.
        """
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where the stream was when it returned ``state``; fetches the elements that it held."""
        ...


@dataclass(frozen=True)
class Count:
    """A number of elements, which a stage's ``count_of`` gets and returns.

    Args:
        elements: The number.
        rows: The rows of all batches, or the samples of all shards, if known.

    Example:
        >>> Count(10) + Count(4), Count(10).times(3)
        (Count(elements=14, rows=None), Count(elements=30, rows=None))
    """

    elements: int
    rows: int | None = None

    def __add__(self, other: Count) -> Count:
        known = self.rows is not None and other.rows is not None
        return Count(self.elements + other.elements, (self.rows or 0) + (other.rows or 0) if known else None)

    def times(self, number: int) -> Count:
        """``number`` times the count."""
        return Count(self.elements * number, None if self.rows is None else self.rows * number)

    def batched(self, batchsize: int, partial: bool) -> Count:
        """The count of batches of these elements; ``partial`` tells whether the last one may be smaller."""
        batches = -(-self.elements // batchsize) if partial else self.elements // batchsize
        return Count(batches, min(self.elements, batches * batchsize))


class RowStep(NamedTuple):
    """A stage's work on rows, and its arguments as ``rebatched`` would take them; see ``Filter``."""

    kind: Literal["unbatch", "shuffle", "batch"]
    arguments: Mapping[str, Any] = {}


class LengthUnknown(TypeError):
    """The number of elements in an epoch is not known; ``reason`` names the stage or dataset."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the number of elements in an epoch is not known: {reason}. with_length(n) sets what len() "
            "returns, with_epoch(n) makes an epoch of n elements"
        )


def one_sample(element: Any) -> int:
    """1, the number of samples in an element that is a single sample."""
    return 1


@runtime_checkable
class Stage(Protocol):
    """The least that a user's stage has: it makes a stream from a stream."""

    def stream(self, source: Stream[Any], context: Context = ...) -> Stream[Any]: ...


@runtime_checkable
class PipelineSource(Protocol):
    """The least that a user's source has: it makes the first stream of a pipeline."""

    def stream(self, context: Context = ...) -> Stream[Any]: ...


class Composable(Suggesting, ABC):
    @abstractmethod
    def compose(self: Self, *stages: Any) -> Self:
        """A copy with more stages; of a loader, a pipeline after it."""


class FromWorkers(Composable):
    """Base of loaders, and of pipelines after them."""


def not_for_workers(loader: object) -> TypeError:
    """The error for a loader that workers of another one would iterate."""
    return TypeError(f"{loader} is a loader, and each worker would deliver all of it: give its dataset")


class Part:
    """Base of sources and stages: what pipelines and loaders ask of them, and the usual answers.

    A user's object needs no more than a method ``stream``: ``as_source`` and ``as_stage`` wrap it.

    Attributes:
        addressable: ``False`` if the stream cannot fetch an element again by its address.
        in_any_order: ``True`` if elements are taken as they appear, so that workers cannot keep an order.
        reads_shards: ``True`` if it reads storage.
        divides_itself: ``True`` if a user's code divides the elements, by what it knows of ranks and workers.
        alike_before_split: Whether it runs alike on all workers or ranks before a stage that divides.
        samples_in: Returns the number of samples in an element, for statistics; ``None``: as many as before.
        parts: The parts that it consists of, if any; they answer for it.
    """

    addressable: bool = True
    in_any_order: bool = False
    reads_shards: bool = False
    divides_itself: bool = False
    alike_before_split: bool = False

    @property
    def samples_in(self) -> Callable[[Any], int] | None:
        return None

    @property
    def parts(self) -> tuple[Part, ...]:
        return ()

    @property
    def non_resumable_part(self) -> str | None:
        """The name of the part that gives elements without addresses, or ``None``."""
        if parts := self.parts:
            return next((name for part in parts if (name := part.non_resumable_part) is not None), None)
        return None if self.addressable else str(self)

    @property
    def self_dividing_part(self) -> str | None:
        """The name of the part that ``divides_itself``, or ``None``."""
        if self.divides_itself:
            return str(self)
        return next((name for part in self.parts if (name := part.self_dividing_part) is not None), None)

    @property
    def takes_any_order(self) -> bool:
        return self.in_any_order or any(part.takes_any_order for part in self.parts)

    def capacity(self, context: Context) -> int:
        """Elements that the buffer of one of its streams holds, at the most: of a ``shuffle``."""
        return sum(part.capacity(context) for part in self.parts)

    def __str__(self) -> str:
        return type(self).__name__ if type(self).__repr__ is object.__repr__ else repr(self)


class Origin(Part, ABC):
    """Base of sources."""

    never_empty: bool = False  # every worker gets at least one element

    @abstractmethod
    def stream(self, context: Context = ALONE) -> Stream[Any]:
        """The stream of one epoch."""

    def count_in(self, context: Context, exact: bool = True) -> Count:
        """Counts a worker's elements, or raises ``LengthUnknown``. Descriptions count unless ``exact``."""
        raise LengthUnknown(f"{self} does not tell how many elements it has")


class BaseStream(Stream[T], ABC):
    """Base of streams. The state consists of the attributes named by ``_counters``."""

    skip: Callable[[int], object] | None = None  # leaves out the next n elements without making them
    _counters: ClassVar[tuple[str, ...]] = ()

    def __iter__(self) -> BaseStream[T]:
        return self

    def describe(self, address: Any, element: object = None) -> Description:
        return Description.of_sample(element, Description(f"element {address}"))

    def state_dict(self) -> dict[str, Any]:
        return {name.lstrip("_"): copy(getattr(self, name)) for name in self._counters}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self._counters:
            setattr(self, name, copy(state[name.lstrip("_")]))


class WrappedStream(BaseStream[T]):
    """Base of streams that read another stream and keep its addresses.

    ``_source`` is the other stream, ``_next`` its ``__next__``.
    """

    def __init__(self, source: Stream[Any]) -> None:
        self._source = source
        self._next = source.__next__

    def fetch(self, address: Any) -> T:
        element: T = self._source.fetch(address)
        return element

    def describe(self, address: Any, element: object = None) -> Description:
        return self._source.describe(address, element)

    def state_dict(self) -> dict[str, Any]:
        return {"source": self._source.state_dict(), **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._source.load_state_dict(state["source"])
        super().load_state_dict(state)


class EveryNth(WrappedStream[T]):
    """Every ``step``-th element of a source, from number ``start`` on and before ``stop``."""

    _counters = ("_position", "_wanted")

    def __init__(self, source: Stream[Any], start: int, stop: int | None, step: int) -> None:
        super().__init__(source)
        self._stop = stop
        self._step = step
        self._position = 0  # of the source's next element
        self._wanted = start
        self._jump = source.skip if isinstance(source, BaseStream) else None

    def __next__(self) -> tuple[Address, T]:
        if self._stop is not None and self._wanted >= self._stop:
            raise StopIteration
        if self._jump is not None:
            self._jump(self._wanted - self._position)
            self._position = self._wanted
        while self._position < self._wanted:
            self._next()
            self._position += 1
        item: tuple[Address, T] = self._next()
        self._position += 1
        self._wanted += self._step
        return item

    def skip(self, count: int) -> None:
        self._wanted += count * self._step


class OrderedStream(BaseStream[T]):
    """Base of streams whose addresses are known: those of ``order``."""

    _failed = -1  # the cursor after the element that failed last

    def __init__(self, order: Sequence[Any]) -> None:
        self._order = order
        self._cursor = 0

    def __next__(self) -> tuple[Address, T]:
        if self._cursor >= len(self._order):
            self._failed = -1
            raise StopIteration
        address = self._order[self._cursor]
        self._cursor += 1
        try:
            return address, self.fetch(address)
        except Exception:
            self._failed = self._cursor
            raise

    def skip(self, count: int) -> None:
        self._cursor += count

    def state_dict(self) -> dict[str, Any]:
        return {"cursor": self._cursor - (self._failed == self._cursor)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._cursor, self._failed = state["cursor"], -1


class Source(OrderedStream[T]):
    """A stream over elements in memory, for tests and examples. An element's address is its index."""

    def __init__(self, iterable: Iterable[T]) -> None:
        self._elements: Sequence[T] = tuple(iterable)
        super().__init__(range(len(self._elements)))

    def fetch(self, address: Any) -> T:
        index: int = address
        return self._elements[index]


def as_address(value: Any) -> Address:
    """Turns the lists of an address that has been through JSON or msgpack back into tuples."""
    if isinstance(value, (list, tuple)):
        return tuple(map(as_address, value))
    address: int | str = value
    return address


def number_of(address: Any) -> int:
    """The number that is an address, or its first part: what follows tells other random numbers."""
    number: int = address if isinstance(address, int) else address[0]
    return number


def fetch_held(stream: Stream[T], addresses: Sequence[Any]) -> list[tuple[Address, T]]:
    """Pairs of address and element for each of ``addresses``, in their order.

    ``stream`` fetches them in ascending order, so that a source reads forward. They may come from JSON.

    Example:
        >>> fetch_held(Source("abc"), [2, 0])
        [(2, 'c'), (0, 'a')]
    """
    held = [as_address(address) for address in addresses]
    elements = {place: stream.fetch(held[place]) for place in ascending(held)}
    return [(address, elements[place]) for place, address in enumerate(held)]


def ascending(addresses: Sequence[Address]) -> list[int]:
    """The places of addresses in ascending order. Those that a splitter mixes with its own are in any."""
    places = range(len(addresses))
    try:
        return sorted(places, key=addresses.__getitem__)
    except TypeError:  # numbers and texts
        return sorted(places, key=lambda place: repr(addresses[place]))


def collect(stage: Stage, iterable: Iterable[Any], context: Context = ALONE) -> list[Any]:
    """The plain elements that ``stage`` makes of those of ``iterable``."""
    return [element for _, element in stage.stream(Source(iterable), context)]
