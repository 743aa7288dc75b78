"""Make several elements of each: ``unbatched``, ``unlisted`` and ``flatmap``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import DataclassStage, Retrying, attribute, key_of, with_key
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.randomness import Call, seeded
from mpwds.pipeline.stream import (
    Address,
    Count,
    Description,
    LengthUnknown,
    RowStep,
    Stream,
    as_address,
    one_sample,
    reached_end,
)
from mpwds.suggestions import suggest_arguments

Take = Callable[[int], Any]  # a part by its index; ``reached_end`` after the last


@suggest_arguments
def unbatched(handler: Handler = reraise_exception) -> Unbatched:
    """Stage that splits batches into their rows.

    A tuple or list of columns gives tuples, a dict of columns gives dicts, an array or tensor gives its rows.
    Rows of arrays are views, which keep the batch in memory. For a list of rows, which ``batched`` makes of
    bare strings or with ``collation_fn=None``, use ``unlisted``.

    Args:
        handler: Called when an element cannot be split; the default raises the exception.

    Raises:
        ValueError: While iterating, the columns of a batch differ in length.
        TypeError: While iterating, an element is not a batch.

    Source:
        ``webdataset.filters.unbatched``.

    Example:
        >>> list(unbatched()([([1, 2], ["a", "b"]), ([3], ["c"])]))
        [(1, 'a'), (2, 'b'), (3, 'c')]
    """
    return Unbatched(handler)


@suggest_arguments
def unlisted(handler: Handler = reraise_exception) -> Unlisted:
    """Stage that yields the items of lists, such as ``listed`` makes; ``handler`` as for ``unbatched``.

    Raises:
        TypeError: While iterating, an element is not a list or tuple.

    Source:
        ``webdataset.filters.unlisted``.

    Example:
        >>> list(unlisted()([["a", "b"], ["c"]]))
        ['a', 'b', 'c']
    """
    return Unlisted(handler)


@suggest_arguments
def flatmap(f: Callable[[Any], Iterable[Any] | None], handler: Handler = reraise_exception) -> Flatmap:
    """Stage that yields each element of ``f(element)``, for each element.

    Unlike those of a generator function that is a stage itself (``compose``), the elements have addresses,
    so a loader can resume without running the epoch again: the stage calls ``f`` again and skips the elements
    before the one it needs. Elements of a generator are never in memory together.

    Args:
        f: Takes an element; returns an iterable of elements or ``None``, or is a generator function. Keys
            and random numbers are as for :func:`~mpwds.pipeline.stages.map.map`.
        handler: Called when ``f`` raises an exception, which the default raises. The elements that ``f`` made
            before have been yielded by then.

    Raises:
        TypeError: ``f`` is not callable; or, while iterating, ``f`` returns something other than an iterable
            of elements (a string or a dict is one element).

    Example:
        >>> def get_patches(sample):
        ...     for start in range(0, len(sample["txt"]), 2):
        ...         yield {"txt": sample["txt"][start : start + 2]}
        >>> list(flatmap(get_patches)([{"__key__": "a", "txt": "abc"}]))
        [{'__key__': 'a', 'txt': 'ab'}, {'__key__': 'a', 'txt': 'c'}]
    """
    return Flatmap(f, handler)


class _Parts(Retrying):
    """The stream of the parts of each element. A part's address is (element's address, index).

    ``open(address, element)`` returns the function that takes parts; if ``drawn``, it takes them in ascending
    order only. ``name`` is the word for a part in errors.
    """

    def __init__(
        self, source: Stream[Any], stage: Any, name: str, open: Callable[..., Take], drawn: bool = False
    ) -> None:
        super().__init__(source, stage, stage.handler)
        self._name = name
        self._open = open
        self._drawn = drawn
        self._address: Address = ()
        self._element: Any = None
        self._take: Take | None = None
        self._index = 0
        self._begin_at: list[int] = []  # the first part that each of the next elements yields
        self._failed_at: list[int] = []
        self._fetched: tuple[Address, int, Take] | None = None

    def __next__(self) -> tuple[Address, Any]:
        while True:
            if self._take is None:
                self._address, self._element = self._next()
                self._index = self._begin_at.pop(0) if self._begin_at else 0
            address, index = self._address, self._index
            try:
                if self._take is None:
                    self._take = self._open(address, self._element)
                part = self._take(index)
            except Exception as error:
                element = self._element
                self._close()
                self._failed_at.append(index)
                self._handle(error, address, element)
                self._failed_at.pop()
            else:
                if part is not reached_end:
                    self._index = index + 1
                    return (address, index), part
                self._close()

    def fetch(self, address: Any) -> Any:
        whole, index = address
        whole = as_address(whole)
        fetched, self._fetched = self._fetched, None
        if fetched is not None and fetched[0] == whole and (fetched[1] < index or not self._drawn):
            take = fetched[2]
        else:
            take = self._open(whole, self._source.fetch(whole))
        part = take(index)
        if part is reached_end:
            raise LookupError(f"in {self._stage}: there is no {self.describe(address)}")
        self._fetched = (whole, index, take)
        return part

    def describe(self, address: Any, element: object = None) -> Description:
        whole, index = address
        return self._source.describe(whole, element).row_of(f"{self._name} {index}")

    def state_dict(self) -> dict[str, Any]:
        state, left = super().state_dict(), self._failed_at + self._begin_at
        if self._take is None:
            return {**state, "unused": left}
        return {**state, "held": [self._address, *state["held"]], "unused": [self._index, *left]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._close()
        self._failed_at, self._begin_at = [], list(state["unused"])

    def _close(self) -> None:
        self._take, self._element = None, None


@dataclass(frozen=True)
class Unbatched(DataclassStage, called="unbatched"):
    handler: Handler = reraise_exception

    samples_in = staticmethod(one_sample)

    def count_of(self, incoming: Count) -> Count:
        if self.handler is not reraise_exception:
            return super().count_of(incoming)
        if incoming.rows is None:
            raise LengthUnknown(f"{self} gets batches whose number of rows is not known")
        return Count(incoming.rows)

    @property
    def row_step(self) -> RowStep | None:
        return RowStep("unbatch") if self.handler is reraise_exception else None

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Parts(source, self, "row", _rows)


def _rows(address: Address, element: Any) -> Take:
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
        columns = batch.values() if isinstance(batch, dict) else batch
        for column in columns:
            if isinstance(column, (str, bytes, dict)) or attribute(column, "__getitem__") is None:
                raise TypeError(
                    f"unbatched: a column must be a list or an array, got a {type(column).__name__}; "
                    "use unlisted() for lists of samples"
                )
        lengths = [len(column) for column in columns]
        if len(set(lengths)) > 1:
            raise ValueError(f"unbatched: the columns differ in length: {', '.join(map(str, lengths))}")
        return lengths[0] if lengths else 0
    if (attribute(batch, "ndim") or 0) > 0:
        return len(batch)
    raise TypeError(
        "unbatched needs batches (tuples, lists or dicts of columns, or arrays), "
        f"got a {type(batch).__name__}"
    )


@dataclass(frozen=True)
class Unlisted(DataclassStage, called="unlisted"):
    handler: Handler = reraise_exception

    samples_in = staticmethod(one_sample)

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Parts(source, self, "item", _items)


def _items(address: Address, element: Any) -> Take:
    if not isinstance(element, (list, tuple)):
        raise TypeError(f"unlisted needs lists of samples, got a {type(element).__name__}")
    return lambda index: element[index] if index < len(element) else reached_end


@dataclass(frozen=True)
class Flatmap(DataclassStage, called="flatmap"):
    function: Callable[[Any], Iterable[Any] | None]
    handler: Handler = reraise_exception

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Parts(source, self, "part", functools.partial(self._open, seeded(context)), True)

    def _open(self, call: Call, address: Address, element: Any) -> Take:
        key = key_of(element)  # looked up before the call, because the function may change the sample
        made = call(self.function, address, element)
        if made is None:
            return lambda index: reached_end
        if isinstance(made, (str, bytes, dict)) or not isinstance(made, Iterable):
            raise TypeError(
                f"flatmap: the function must return an iterable of elements, got a {type(made).__name__}; "
                "use map to make one element of each"
            )
        if isinstance(made, (list, tuple)):
            return lambda index: with_key(key, made[index]) if index < len(made) else reached_end
        iterator, position = iter(made), 0

        def take(index: int) -> Any:
            nonlocal position
            part = reached_end
            for number in range(position, index + 1):
                # Seeded for each part, because other functions draw from the same generators in between.
                part = call(lambda parts: next(parts, reached_end), (address, number), iterator)
            position = index + 1
            return part if part is reached_end else with_key(key, part)

        return take
