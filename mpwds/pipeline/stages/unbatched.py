"""Take batches apart into samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.counts import Count, LengthUnknown, RowStep, check_raises, one_sample
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.handlers import Handler, check_handler, reraise_exception
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.stages.parts import Parts, Take
from mpwds.pipeline.stream import Address, Stream, reached_end


def unbatched(handler: Handler = reraise_exception) -> Unbatched:
    """Stage that takes batches apart into their rows.

    A tuple or list of columns gives tuples, a dict of columns gives dicts, an array or tensor gives its rows.
    Rows of arrays are views: they keep the batch's memory. For a list of rows, which ``batched`` makes of
    bare strings or with ``collation_fn=None``, use ``unlisted``.

    Args:
        handler: What to do about an element that is not a batch, or whose columns differ in length; raises by
            default.

    Raises:
        ValueError: While iterating, the columns of a batch differ in length.
        TypeError: ``handler`` cannot be called; or, while iterating, an element is not a batch.

    Source:
        ``webdataset.filters.unbatched``.

    Example:
        >>> list(unbatched()([([1, 2], ["a", "b"]), ([3], ["c"])]))
        [(1, 'a'), (2, 'b'), (3, 'c')]
    """
    return Unbatched(handler)


@dataclass(frozen=True)
class Unbatched(Filter):
    """The stage that ``unbatched`` makes."""

    handler: Handler = reraise_exception

    samples_in = staticmethod(one_sample)

    def __post_init__(self) -> None:
        check_handler("unbatched", self.handler)

    def __str__(self) -> str:
        return f"unbatched({arguments(**options(handler=(self.handler, reraise_exception)))})"

    def count_of(self, incoming: Count) -> Count:
        check_raises(self, self.handler)
        if incoming.rows is None:
            raise LengthUnknown(f"{self} gets batches whose number of rows is not known")
        return Count(incoming.rows)

    @property
    def row_step(self) -> RowStep | None:
        return RowStep("unbatch") if self.handler is reraise_exception else None

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Rows(source, self, "row", self.handler)


class _Rows(Parts):
    def _open(self, address: Address, element: Any) -> Take:
        rows = _length(element)
        return lambda row: _row(element, row) if row < rows else reached_end


def _row(batch: Any, row: int) -> Any:
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
                raise TypeError(
                    f"unbatched: a column is a list or an array, got a {type(column).__name__}; "
                    "lists of samples are taken apart by unlisted()"
                )
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
