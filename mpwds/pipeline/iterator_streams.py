"""Streams over plain iterators: they number the elements but cannot make one again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mpwds.pipeline.context import Context
from mpwds.pipeline.notes import add_note
from mpwds.pipeline.randomness import seeded
from mpwds.pipeline.stream import Address, Description


class UnseekableStream:
    """A stream over an iterator that a user's code makes. No element can be fetched by its address.

    Random numbers that the iterator draws are the same in each run of an epoch by the same worker.

    Args:
        start: Makes the iterator, when the first element is asked for.
        maker: What the iterator comes from; ``str(maker)`` names it in errors.
        context: Gives the seed, the epoch, the rank and the worker.
    """

    def __init__(self, start: Callable[[], Iterable[Any]], maker: object, context: Context) -> None:
        self._start = start
        self._maker = maker
        self._context = context
        self._call = seeded(context)
        self._elements: Iterator[Any] | None = None
        self._count = 0

    def __iter__(self) -> UnseekableStream:
        return self

    def __next__(self) -> tuple[Address, Any]:
        address = (self._context.rank, self._context.worker, self._count)
        try:
            if self._elements is None:
                self._elements = self._call(self._started, (*address, "start"), None)
            element = self._call(next, address, self._elements)
        except StopIteration:
            raise
        except Exception as error:
            add_note(error, f"in {self._maker}, after {self._count} elements")
            raise
        self._count += 1
        return address, element

    def fetch(self, address: Any) -> Any:
        raise LookupError(
            f"{self._maker} gives elements without addresses: they can only be made again by replay"
        )

    def describe(self, address: Any, element: object = None) -> Description:
        rank, worker, count = address
        return Description.of_sample(
            element, Description(f"element {count} of {self._maker} in worker {worker} of rank {rank}")
        )

    def state_dict(self) -> dict[str, Any]:
        raise LookupError(f"{self._maker} gives elements without addresses: it has no state to save")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise LookupError(f"{self._maker} gives elements without addresses: it has no state to load")

    def _started(self, _: None) -> Iterator[Any]:
        try:
            elements = self._start()
        except StopIteration as error:
            raise RuntimeError("a function raised StopIteration, which is no way to end a dataset") from error
        if not isinstance(elements, Iterable) and not hasattr(elements, "__getitem__"):
            raise TypeError(
                f"{self._maker} returned {elements!r}, not an iterator of elements: write a generator "
                "function, which yields them, or return an iterator (a function of one element goes into map)"
            )
        return iter(elements)


class IteratorStream:
    """A stream over an iterator that runs once; an element's address is its number.

    Args:
        elements: The elements.
        which: Says in messages where they come from.

    Example:
        >>> next(IteratorStream("ab"))
        (0, 'a')
    """

    def __init__(self, elements: Iterable[Any], which: str = "of a plain iterator") -> None:
        self._elements = iter(elements)
        self._which = which
        self._count = 0

    def __iter__(self) -> IteratorStream:
        return self

    def __next__(self) -> tuple[Address, Any]:
        element = next(self._elements)
        self._count += 1
        return self._count - 1, element

    def fetch(self, address: Any) -> Any:
        raise LookupError(f"element {address} {self._which} cannot be made again")

    def describe(self, address: Any, element: object = None) -> Description:
        return Description.of_sample(element, Description(f"element {address} {self._which}"))

    def state_dict(self) -> dict[str, Any]:
        raise LookupError(f"elements {self._which} have no state to save")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise LookupError(f"elements {self._which} have no state to load")
