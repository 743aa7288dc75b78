"""Streams over plain iterators, which cannot fetch an element again, and how a pipeline resumes with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from mpwds.pipeline.context import Context
from mpwds.pipeline.error_context import add_note
from mpwds.pipeline.randomness import seeded
from mpwds.pipeline.stream import Address, BaseStream, Description, Stream, WrappedStream
from mpwds.suggestions import shown
from mpwds.warn import warn


class _IteratedStream(BaseStream[Any]):
    """Base of streams over an iterator, which can neither fetch an element nor tell a state."""

    def __init__(self, origin: object) -> None:
        self._origin = origin
        self._count = 0

    def fetch(self, address: Any) -> Any:
        raise self._error()

    def state_dict(self) -> dict[str, Any]:
        raise self._error()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise self._error()

    def _error(self) -> LookupError:
        return LookupError(f"{self._origin} gives elements without addresses")


class UnseekableStream(_IteratedStream):
    """A stream over an iterator from a user's code. ``start`` makes it when the first element is requested.

    The iterator draws the same random numbers in each run of an epoch by the same worker. ``maker`` is the
    stage or source that has ``start``: it is named in errors.
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
        return Description.of_sample(
            element, Description(f"element {count} of {self._origin} in worker {worker} of rank {rank}")
        )

    def _started(self, _: None) -> Iterator[Any]:
        try:
            elements = self._start()
        except StopIteration as error:
            raise RuntimeError("a function raised StopIteration, which cannot end a dataset") from error
        if not isinstance(elements, Iterable) and not hasattr(elements, "__getitem__"):
            raise TypeError(
                f"{self._origin} returned {shown(elements)}, not an iterator of elements: write a generator "
                "function, which yields them, or return an iterator (for a function of one element use map)"
            )
        return iter(elements)


class IteratorStream(_IteratedStream):
    """A stream over an iterator that runs once. An element's address is its number.

    ``which`` follows "element 7" in error messages: where the elements come from.
    """

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
