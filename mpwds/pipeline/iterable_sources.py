"""Sources that are iterables, the streams over their iterators, and streams as plain iterators."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NoReturn, Protocol, runtime_checkable

from mpwds.errors import shorten, shortened
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.error_context import add_note, explain, not_an_end
from mpwds.pipeline.randomness import States, restore_rng, saved_rng, seeded, unseeded
from mpwds.pipeline.stream import (
    Address,
    BaseStream,
    Count,
    Description,
    OrderedStream,
    Origin,
    Stream,
    WrappedStream,
    one_sample,
)
from mpwds.suggestions import shown
from mpwds.warn import warn


class TorchIterable:
    """Base of datasets that torch's DataLoader treats as an ``IterableDataset``.

    Inheriting from torch's class would import torch. But DataLoader asks ``isinstance``, which also looks at
    ``__class__``: once torch is imported, that is a subclass of both.
    """

    @property
    def map_style(self) -> bool:
        """True if torch's DataLoader is to ask for samples by index instead."""
        return False

    @property  # type: ignore[misc]  # nobody sets it
    def __class__(self) -> Any:
        data = sys.modules.get("torch.utils.data")
        base = getattr(data, "IterableDataset", None)  # absent while torch is being imported
        kind: Any = type(self)  # mypy finds no __hash__ in a type whose instances redefine __class__
        return kind if base is None or self.map_style else _both(kind, base)

    def __reduce__(self) -> Any:
        # By default pickle refuses an object whose __class__ is not its type.
        return _rebuilt, (type(self), self.__dict__)


class IterableSource(TorchIterable, Origin):
    """Base of pipelines and sources that can be iterated. Each ``iter()`` is another epoch."""

    _epoch = 0
    _epoch_is_given = False

    @shortened
    def __iter__(self) -> Iterator[Any]:
        stream = self.stream(self._context())
        self._epoch += 1  # not of an epoch that failed to begin
        return iter_elements(stream)

    def _context(self) -> Context:
        context = Context.current(self._epoch)
        return replace(context, run=0, tells_epoch=True) if self._epoch_is_given else context

    def set_epoch(self, epoch: int) -> None:
        """Makes the next ``iter()`` run epoch ``epoch``, from 0.

        Example:
            >>> import mpwds
            >>> dataset = mpwds.DataPipeline(range(50)).shuffle(50)
            >>> first = list(dataset)
            >>> dataset.set_epoch(0)
            >>> list(dataset) == first != list(dataset)
            True
        """
        self._epoch = epoch
        self._epoch_is_given = True


def iterates_itself(dataset: Any) -> bool:
    """True if a dataset's class overrides ``__iter__`` but not ``stream``, so that it must be iterated."""
    for kind in type(dataset).__mro__:
        if "stream" in vars(kind):
            return False
        if "__iter__" in vars(kind):
            return True
    return False


@runtime_checkable
class MapStyle(Protocol):
    """A sequence, or another object with a length and indices."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


@dataclass(frozen=True)
class Indexed(Origin):
    """Source of a pipeline: a list, a map-style dataset, or another object with indices.

    Ranks divide the indices, and a rank's workers its own. An element's address is its index. Random numbers
    that a map-style dataset draws for an element are the same each time it is read in this epoch.
    """

    elements: MapStyle

    samples_in = staticmethod(one_sample)

    def __str__(self) -> str:
        return type(self.elements).__name__

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        return _SequenceStream(self, context)

    def indices(self, context: Context) -> range:
        indices = range(len(self.elements))
        return indices[context.rank :: context.world_size][context.worker :: context.workers]

    def count_in(self, context: Context, exact: bool = True) -> Count:
        return Count(len(self.indices(context)))


class _SequenceStream(OrderedStream[Any]):
    def __init__(self, origin: Indexed, context: Context) -> None:
        self._origin = origin
        self._elements = origin.elements
        super().__init__(origin.indices(context))
        draws_nothing = type(self._elements).__module__ in ("builtins", "numpy")
        self._call = unseeded if draws_nothing else seeded(context)

    def fetch(self, address: Any) -> Any:
        try:
            return self._call(self._elements.__getitem__, address, address)
        except Exception as error:
            explain(error, self._origin, self, address)
            raise


@dataclass(frozen=True)
class Iterated(Origin):
    """Source of a pipeline: an iterable, or a function that returns an iterator.

    Each worker reads all of it, so the iterable has to divide itself among workers, as a
    ``torch.utils.data.IterableDataset`` does with ``get_worker_info()``. Its elements have no address.
    Random numbers it draws are the same in each run of an epoch by the same worker. If it has ``set_epoch``,
    loaders, and ``set_epoch`` of the pipeline, tell it the epoch.
    """

    elements: Iterable[Any] | Callable[[], Iterator[Any]]
    addressable = False
    divides_itself = True

    def __post_init__(self) -> None:
        if isinstance(self.elements, Iterator) and not is_torch_iterable(self.elements):
            raise TypeError(
                f"a {type(self.elements).__name__} can be iterated only once: give the pipeline the function "
                "or the iterable that makes it"
            )
        if not isinstance(self.elements, Iterable) and not callable(self.elements):
            raise TypeError(
                "a pipeline begins at shards, a sequence, a map-style dataset, an iterable or a function "
                f"that returns an iterator, got a {type(self.elements).__name__}"
            )

    def __str__(self) -> str:
        return getattr(self.elements, "__name__", None) or type(self.elements).__name__

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        return UnseekableStream(functools.partial(self._start, context), self, context)

    def _start(self, context: Context) -> Iterable[Any]:
        if context.tells_epoch and hasattr(self.elements, "set_epoch"):
            self.elements.set_epoch(context.epoch)
        return self.elements if isinstance(self.elements, Iterable) else self.elements()


def is_torch_iterable(dataset: Any) -> bool:
    """True if an object is a ``torch.utils.data.IterableDataset``; it may be an iterator, too."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(dataset, data.IterableDataset)


@functools.cache
def _both(kind: type, base: type) -> type:
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind, base), names)


def _rebuilt(kind: type, attributes: dict[str, Any]) -> Any:
    instance: Any = object.__new__(kind)
    instance.__dict__.update(attributes)
    return instance


def iter_elements(stream: Stream[Any]) -> Iterator[Any]:
    """The elements of a stream without addresses. Puts back random generators: see ``randomness.seeded``."""
    advance = stream.__next__
    mine: States = []
    while True:
        outermost = saved_rng.states is None
        if outermost:
            saved_rng.states = mine
        try:
            _, element = advance()
        except StopIteration:
            return
        except (Exception, KeyboardInterrupt) as error:
            shorten(error)
            raise
        finally:
            if outermost:
                saved_rng.states = None
                if mine:
                    restore_rng(mine)
                    mine.clear()
        yield element


class _IteratedStream(BaseStream[Any]):
    """Base of streams over an iterator, which can neither fetch an element nor tell a state."""

    def __init__(self, origin: object) -> None:
        self._origin = origin
        self._count = 0

    def fetch(self, address: Any) -> NoReturn:
        raise LookupError(f"{self._origin} gives elements without addresses")

    def state_dict(self) -> NoReturn:
        self.fetch(None)

    def load_state_dict(self, state: dict[str, Any]) -> NoReturn:
        self.fetch(None)


class UnseekableStream(_IteratedStream):
    """A stream over an iterator from a user's code. ``start`` makes it when the first element is requested.

    The iterator draws the same random numbers in each run of an epoch by the same worker. Errors name
    ``maker``, the stage or source that has ``start``.
    """

    def __init__(self, start: Callable[[], Iterable[Any]], maker: object, context: Context) -> None:
        super().__init__(maker)
        self._start = start
        self._context = context
        self._call = seeded(context)
        self._elements: Iterator[Any] | None = None

    def __next__(self) -> tuple[Address, Any]:
        address = (self._context.rank, self._context.worker, self._count)
        try:
            if self._elements is None:
                self._elements = self._call(self._started, (*address, "start"), None)
            element = self._call(next, address, self._elements)
        except StopIteration:
            raise
        except Exception as error:
            add_note(error, f"in {self._origin}, after {self._count} elements")
            raise
        self._count += 1
        return address, element

    def describe(self, address: Any, element: object = None) -> Description:
        rank, worker, count = address
        text = f"element {count} of {self._origin} in worker {worker} of rank {rank}"
        return Description.of_sample(element, Description(text))

    def _started(self, _: None) -> Iterator[Any]:
        try:
            elements = self._start()
        except StopIteration as error:
            raise not_an_end(error) from error
        if not isinstance(elements, Iterable):  # iter() of a map-style dataset may never end
            raise TypeError(
                f"{self._origin} returned {shown(elements)}, not an iterator of elements: write a generator "
                "function, which yields them, or return an iterator (for a function of one element use map)"
            )
        return iter(elements)


class IteratorStream(_IteratedStream):
    """A stream over an iterator that runs once. Errors tell an element's address: "element 7" ``which``."""

    def __init__(self, elements: Iterable[Any], which: str = "of a plain iterator") -> None:
        super().__init__("a plain iterator")
        self._which = which
        self._elements = iter(elements)

    def __next__(self) -> tuple[Address, Any]:
        element = next(self._elements)
        self._count += 1
        return self._count - 1, element

    def describe(self, address: Any, element: object = None) -> Description:
        return Description.of_sample(element, Description(f"element {address} {self._which}"))


class Replayed(WrappedStream[Any]):
    """A stream that resumes by running again and skipping the elements it delivered before.

    ``start`` makes the stream, at its beginning; ``unaddressed`` is the stage or source without addresses.
    """

    def __init__(self, start: Callable[[], Stream[Any]], unaddressed: str = "the epoch") -> None:
        super().__init__(start())
        self._start = start
        self._unaddressed = unaddressed
        self._delivered = 0

    def __next__(self) -> tuple[Address, Any]:
        item: tuple[Address, Any] = self._next()
        self._delivered += 1
        return item

    def state_dict(self) -> dict[str, Any]:
        return {"delivered": self._delivered}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Runs the stream again up to where the state was saved, and warns of that."""
        if delivered := state["delivered"]:
            warn(
                f"{self._unaddressed} gives elements without addresses: the pipeline is restored by running "
                f"the first {delivered} elements of the epoch again",
                UserWarning,
            )
        self._run_to(delivered)

    def _run_to(self, delivered: int) -> None:
        self._source = self._start()
        self._next = self._source.__next__
        skip(self._source, delivered, self._unaddressed)
        self._delivered = delivered


def skip(elements: Iterator[Any], count: int, what: str = "the epoch") -> None:
    """Skips the first ``count`` elements of an epoch that runs again; ``what`` names it in an error."""
    again = sum(1 for _ in islice(elements, count))
    if again < count:
        raise RuntimeError(
            f"{what} ended after {again} elements but {count} were delivered before: it has changed, or "
            "gives other elements each time it runs, so it cannot be resumed"
        )
