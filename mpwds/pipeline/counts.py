"""How many elements a stage makes, and how many samples an element holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from mpwds.pipeline.handlers import Handler, reraise_exception


@dataclass(frozen=True)
class Count:
    """A number of elements.

    Args:
        elements: The number.
        rows: If they are batches, the rows in all of them together; ``None`` if unknown.
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
        super().__init__(
            f"the number of elements in an epoch is not known: {reason}. with_length(n) sets what len() "
            "returns, with_epoch(n) makes an epoch of n elements"
        )


def count_of(stage: Any, incoming: Count) -> Count:
    """How many elements a stage makes of ``incoming``; see :class:`~mpwds.pipeline.filter.Filter`.

    Raises:
        LengthUnknown: The stage has no method ``count_of``, or raises this.
    """
    tell: Callable[[Count], Count] | None = getattr(stage, "count_of", None)
    if tell is None:
        raise LengthUnknown(f"{stage} may drop or add elements")
    return tell(incoming)


def check_raises(stage: Any, handler: Handler) -> None:
    """Raises ``LengthUnknown`` if a stage's error handler may skip elements."""
    if handler is not reraise_exception:
        raise LengthUnknown(f"{stage} may drop or add elements")


def one_sample(element: Any) -> int:
    """1, the number of samples in an element that is a single sample."""
    return 1


def rows_in(element: Any) -> int:
    """The number of samples in an element, inferred from its columns if it is a batch.

    A batch is an array, or a dict, tuple, list or dataclass of columns of equal length. Columns are arrays
    and lists, possibly nested. An element that holds a number or a string is a single sample. A call takes
    about a microsecond.

    Example:
        >>> import numpy as np
        >>> rows_in({"image": np.zeros((64, 3, 8, 8)), "label": list(range(64))})
        64
        >>> rows_in((np.zeros((3, 8, 8)), 7))
        1
    """
    is_list = isinstance(element, list)
    rows = None
    for column in _columns(element):
        if isinstance(column, list):
            length = len(column)
        elif isinstance(shape := attribute(column, "shape"), tuple) and shape and isinstance(shape[0], int):
            length = shape[0]
        elif column is None:
            continue
        elif is_list:
            return len(element)
        elif isinstance(column, (dict, tuple)) or _is_dataclass(column):
            length = rows_in(column)
        else:
            return 1
        if rows is None:
            rows = length
        elif length != rows:
            return 1
    return 1 if rows is None else rows


def attribute(item: Any, name: str) -> Any:
    """An attribute of an element; ``None`` if it is missing or raises an exception."""
    try:
        return getattr(item, name, None)
    except Exception:  # the shape of a nested tensor and the nbytes of a sparse one raise RuntimeError
        return None


def _columns(element: Any) -> Iterable[Any]:
    if isinstance(element, dict):
        return element.values()
    if isinstance(element, (tuple, list)):
        return element
    if _is_dataclass(element):
        return [attribute(element, field.name) for field in dataclasses.fields(element)]
    return (element,)


def _is_dataclass(element: Any) -> bool:
    return dataclasses.is_dataclass(element) and not isinstance(element, type)
