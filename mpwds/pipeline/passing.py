"""A stream over any iterator: its elements are counted, but cannot be made again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mpwds.pipeline.place import Place
from mpwds.pipeline.stream import Address


class Passing:
    """A stream over an iterator that runs once.

    Args:
        elements: What it passes on; an element's address is its number.
        which: What tells them from others, for messages.

    Example:
        >>> next(Passing("ab"))
        (0, 'a')
    """

    def __init__(self, elements: Iterable[Any], which: str = "of a plain iterator") -> None:
        self._elements = iter(elements)
        self._which = which
        self._count = 0

    def __iter__(self) -> Passing:
        return self

    def __next__(self) -> tuple[Address, Any]:
        element = next(self._elements)
        self._count += 1
        return self._count - 1, element

    def fetch(self, address: Any) -> Any:
        raise LookupError(f"element {address} {self._which} cannot be made again")

    def describe(self, address: Any, element: object = None) -> Place:
        return Place.of_sample(element, Place(f"element {address} {self._which}"))

    def state_dict(self) -> dict[str, Any]:
        raise LookupError(f"elements {self._which} have no state to save")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise LookupError(f"elements {self._which} have no state to load")
