"""Take batches apart into samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.notes import explain
from mpwds.pipeline.place import Place
from mpwds.pipeline.stream import Address, Derived, Stream, as_address


def unbatched() -> Unbatched:
    """Stage that takes batches apart into their rows.

    Example:
        >>> list(unbatched()([([1, 2], ["a", "b"])]))
        [(1, 'a'), (2, 'b')]
    """
    return Unbatched()


@dataclass(frozen=True)
class Unbatched(Filter):
    """Stage that yields the rows of each batch, in order.

    A tuple or list of columns gives tuples, a dict of columns gives dicts, an array or tensor gives its
    rows. Rows of arrays are views: they keep the batch's memory. A list of rows, as ``batched`` makes of
    bare strings or with ``collation_fn=None``, is no list of columns and not taken apart rightly.

    Raises:
        ValueError: While iterating, the columns of a batch differ in length.
        TypeError: While iterating, an element is no batch.

    Example:
        >>> from mpwds.pipeline.stream import collect
        >>> collect(Unbatched(), [([1, 2], ["a", "b"]), ([3], ["c"])])
        [(1, 'a'), (2, 'b'), (3, 'c')]
    """

    def __str__(self) -> str:
        return "unbatched()"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Rows(self, source)


class _Rows(Derived[Any]):
    def __init__(self, stage: Unbatched, source: Stream[Any]) -> None:
        super().__init__(source)
        self._stage = stage
        self._address: Address = ()
        self._batch: Any = ()
        self._rows = 0
        self._row = 0
        self._fetched: tuple[Address, Any] | None = None

    def __next__(self) -> tuple[Address, Any]:
        while self._row == self._rows:
            self._batch, self._row, self._rows = (), 0, 0
            address, batch = self._next()
            self._rows = self._count(address, batch)
            self._address, self._batch = address, batch
        row = self._row
        self._row = row + 1
        return (self._address, row), _take(self._batch, row)

    def fetch(self, address: Any) -> Any:
        whole, row = address
        whole = as_address(whole)
        if self._fetched is None or self._fetched[0] != whole:
            self._fetched = whole, self._source.fetch(whole)
        return _take(self._fetched[1], row)

    def describe(self, address: Any, element: object = None) -> Place:
        whole, row = address
        return self._source.describe(whole, element).row_of(f"row {row}")

    def state_dict(self) -> dict[str, Any]:
        return {
            "source": self._source.state_dict(),
            "batch": self._address if self._row < self._rows else None,
            "row": self._row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._source.load_state_dict(state["source"])
        self._batch, self._row, self._rows = (), 0, 0
        if state["batch"] is not None:
            self._address = as_address(state["batch"])
            self._batch = self._source.fetch(self._address)
            self._row, self._rows = state["row"], self._count(self._address, self._batch)

    def _count(self, address: Address, batch: Any) -> int:
        try:
            return _length(batch)
        except (ValueError, TypeError) as error:
            explain(error, self._stage, self._source, address, batch)
            raise


def _take(batch: Any, row: int) -> Any:
    if isinstance(batch, (tuple, list)):
        return tuple([column[row] for column in batch])
    if isinstance(batch, dict):
        return {key: column[row] for key, column in batch.items()}
    return batch[row]


def _length(batch: Any) -> int:
    if isinstance(batch, (tuple, list, dict)):
        columns = list(batch.values()) if isinstance(batch, dict) else batch
        for column in columns:
            if isinstance(column, (str, bytes, dict)) or not hasattr(column, "__getitem__"):
                raise TypeError(f"unbatched: a column is a list or an array, got a {type(column).__name__}")
        lengths = {len(column) for column in columns}
        if len(lengths) > 1:
            found = ", ".join(str(len(column)) for column in columns)
            raise ValueError(f"unbatched: the columns differ in length: {found}")
        return lengths.pop() if lengths else 0
    if getattr(batch, "ndim", 0) > 0:
        return len(batch)
    raise TypeError(
        "unbatched needs batches (tuples, lists or dicts of columns, or arrays), "
        f"got a {type(batch).__name__}"
    )
