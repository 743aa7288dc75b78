"""Continue a stream whose elements have no addresses: run it again and skip what was delivered."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from mpwds.pipeline.stream import Address, Description, Stream


class Replayed:
    """A stream whose state is the number of elements it delivered.

    Args:
        start: Makes the stream, at its beginning.
        culprit: The stage or source for whose sake this is needed, for the warning.
    """

    def __init__(self, start: Callable[[], Stream[Any]], culprit: str) -> None:
        self._start = start
        self._culprit = culprit
        self._stream = start()
        self._delivered = 0

    def __iter__(self) -> Replayed:
        return self

    def __next__(self) -> tuple[Address, Any]:
        item = next(self._stream)
        self._delivered += 1
        return item

    def fetch(self, address: Any) -> Any:
        return self._stream.fetch(address)

    def describe(self, address: Any, element: object = None) -> Description:
        return self._stream.describe(address, element)

    def state_dict(self) -> dict[str, Any]:
        return {"delivered": self._delivered}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Runs the stream again up to where the state was saved.

        Warns:
            UserWarning: Names what gives the elements without addresses.

        Raises:
            RuntimeError: The stream ended before: it does not give the same elements again.
        """
        delivered = state["delivered"]
        self._stream = self._start()
        self._delivered = 0
        if delivered == 0:
            return
        warnings.warn(
            f"{self._culprit} gives elements without addresses: the pipeline is restored by running "
            f"the first {delivered} elements of the epoch again",
            stacklevel=2,
        )
        skip(self._stream, delivered, self._culprit)
        self._delivered = delivered


def skip(elements: Iterator[Any], count: int, what: str = "the epoch") -> None:
    """Takes the elements that were delivered before, of what runs again from its start.

    Args:
        elements: All of them, from the first one on.
        count: How many were delivered.
        what: Gives them, for the message.

    Raises:
        RuntimeError: There are fewer.

    Example:
        >>> letters = iter("abc")
        >>> skip(letters, 2)
        >>> next(letters)
        'c'
    """
    again = sum(1 for _ in islice(elements, count))
    if again < count:
        raise RuntimeError(
            f"{what} ended after {again} elements, {count} were to be skipped: it has changed, or gives "
            "other elements each time it runs, so it cannot be continued"
        )
