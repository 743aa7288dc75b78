"""How many elements a stage makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple


@dataclass(frozen=True)
class Count:
    """A number of elements; ``rows`` is the rows of all batches, or the samples of all shards, if known."""

    elements: int
    rows: int | None = None

    def __add__(self, other: Count) -> Count:
        known = self.rows is not None and other.rows is not None
        return Count(self.elements + other.elements, (self.rows or 0) + (other.rows or 0) if known else None)

    def times(self, number: int) -> Count:
        """``number`` times the count."""
        return Count(self.elements * number, None if self.rows is None else self.rows * number)

    def batched(self, batchsize: int, partial: bool) -> Count:
        """The count of batches of these elements; ``partial`` tells whether the last one may be smaller.

        Example:
            >>> Count(10).batched(4, partial=True), Count(10).batched(4, partial=False)
            (Count(elements=3, rows=10), Count(elements=2, rows=8))
        """
        batches = -(-self.elements // batchsize) if partial else self.elements // batchsize
        return Count(batches, min(self.elements, batches * batchsize))


class RowStep(NamedTuple):
    """What a stage does to rows, and its arguments as ``rebatched`` would take them; see ``Filter``."""

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
