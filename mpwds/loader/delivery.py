"""What a loader delivers, as the stream at which a pipeline in the trainer begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mpwds.pipeline.place import Place
from mpwds.pipeline.stream import Address


class Delivery:
    """A stream over a loader's elements. They are counted, but cannot be made again here.

    Args:
        elements: An epoch of the loader.

    Example:
        >>> next(Delivery(iter("ab")))
        (0, 'a')
    """

    def __init__(self, elements: Iterator[Any]) -> None:
        self._elements = elements
        self._count = 0

    def __iter__(self) -> Delivery:
        return self

    def __next__(self) -> tuple[Address, Any]:
        element = next(self._elements)
        self._count += 1
        return self._count - 1, element

    def fetch(self, address: Any) -> Any:
        raise LookupError("what a loader delivered cannot be fetched again, only delivered again")

    def describe(self, address: Any, element: object = None) -> Place:
        return Place.of_sample(element, Place(f"element {address} that the workers delivered"))

    def state_dict(self) -> dict[str, Any]:
        raise LookupError("what workers deliver has no state to save")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise LookupError("what workers deliver has no state to load")
