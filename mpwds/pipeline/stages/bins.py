"""The stream of batches that are filled side by side, each up to a number of elements or a total size."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Protocol

from mpwds.pipeline.context import Context
from mpwds.pipeline.handlers import Handler
from mpwds.pipeline.randomness import Call
from mpwds.pipeline.stages.batches import Batches, CollationFunction
from mpwds.pipeline.stream import Address, Stream, fetch_held


class Sized(Protocol):
    """What the stages that have such a stream have in common."""

    @property
    def by(self) -> Callable[[Any], float]: ...
    @property
    def max_total(self) -> float | None: ...
    @property
    def collation_fn(self) -> CollationFunction | None: ...
    @property
    def partial(self) -> bool: ...
    @property
    def include_padding(self) -> bool: ...
    @property
    def handler(self) -> Handler: ...


@dataclass
class Bin:
    """The elements of one batch that is being filled.

    Args:
        most: The most elements that it may hold; ``None`` for any number.
        max_total: The most that their sizes may come to; ``None`` for any.
        include_padding: Whether each counts like the largest.

    Example:
        >>> bin = Bin(None, 5)
        >>> bin.add(((0,), "ab"), 2)
        >>> bin.has_room_for(3), bin.has_room_for(4), bin.is_full
        (True, False, False)
    """

    most: int | None
    max_total: float | None = None
    include_padding: bool = False
    held: list[tuple[Address, Any]] = field(default_factory=list)
    total: float = 0
    largest: float = 0

    def add(self, item: tuple[Address, Any], size: float) -> None:
        self.held.append(item)
        self.total += size
        self.largest = max(self.largest, size)

    def empty(self) -> list[tuple[Address, Any]]:
        """What it holds, taken out."""
        held, self.held, self.total, self.largest = self.held, [], 0, 0
        return held

    def has_room_for(self, size: float) -> bool:
        """Whether one more element, of this size, would keep within the limits."""
        count = len(self.held) + 1
        if self.most is not None and count > self.most:
            return False
        total = max(self.largest, size) * count if self.include_padding else self.total + size
        return self.max_total is None or total <= self.max_total

    @property
    def is_full(self) -> bool:
        """Whether no further element would fit, whatever its size."""
        if self.most is not None and len(self.held) >= self.most:
            return True
        if self.max_total is None:
            return False
        if self.include_padding:
            return self.largest * (len(self.held) + 1) > self.max_total
        return self.total >= self.max_total


class Binned(Batches):
    """The stream of batches that are filled side by side: an element goes to the bin that its size calls for.

    A bin is passed on when the next element for it does not fit, or none would. An element that is too large
    for any batch is one by itself. At the end what the bins hold follows, in their order.

    Args:
        source: Stream that gives the elements.
        stage: The stage.
        bins: The bins, empty.
        choose: The index of the bin for a size.
        call: How to call ``stage.by``.
        context: Where and when it runs.
    """

    def __init__(
        self,
        source: Stream[Any],
        stage: Sized,
        bins: list[Bin],
        choose: Callable[[float], int],
        call: Call,
        context: Context,
    ) -> None:
        super().__init__(source, stage, stage.collation_fn, stage.handler, context)
        self._by = stage.by
        self._max_total = stage.max_total
        self._partial = stage.partial
        self._bins = bins
        self._choose = choose
        self._call_by = call
        self._warned = False

    def __next__(self) -> tuple[Address, Any]:
        while True:
            try:
                address, element = self._next()
                size = self._measured(address, element)
            except StopIteration:
                held = self._left_over()
            else:
                held = [] if size is None else self._put((address, element), size)
            if held and (batch := self._batch(held)) is not None:
                return batch

    def _measured(self, address: Address, element: Any) -> float | None:
        try:
            return self._size(address, element)
        except Exception as error:
            self._handle(error, address, element)
            return None

    def _put(self, item: tuple[Address, Any], size: float) -> list[tuple[Address, Any]]:
        bin = self._bins[self._choose(size)]
        complete = [] if bin.has_room_for(size) else bin.empty()
        if not bin.has_room_for(size):
            self._warn_of(item, size)
        bin.add(item, size)
        return bin.empty() if not complete and bin.is_full else complete

    def _left_over(self) -> list[tuple[Address, Any]]:
        for bin in self._bins:
            complete = bin.is_full
            held = bin.empty()
            if held and (self._partial or complete):
                return held
        raise StopIteration

    def _batch(self, held: Any) -> tuple[Address, Any] | None:
        try:
            return super()._batch(held)
        except StopIteration:  # the handler ends the stream here
            for bin in self._bins:
                bin.empty()
            raise

    def _size(self, address: Address, element: Any) -> float:
        size = self._call_by(self._by, address, element)
        if not isinstance(size, Real) or not float(size) >= 0:
            raise ValueError(f"an element's size must be a number that is not below 0, got {size!r}")
        return int(size) if isinstance(size, Integral) else float(size)

    def _warn_of(self, item: tuple[Address, Any], size: float) -> None:
        if not self._warned:
            self._warned = True
            place = self._source.describe(*item)
            warnings.warn(
                f"{place} has a size of {size}, above the limit of {self._max_total} for a batch in "
                f"{self._stage}: it becomes a batch by itself, and so do others that are too large; "
                "select() can leave them out",
                stacklevel=2,
            )

    def state_dict(self) -> dict[str, Any]:
        held = [[address for address, _ in bin.held] for bin in self._bins]
        return {**super().state_dict(), "held": held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        items = iter(fetch_held(self._source, [address for held in state["held"] for address in held]))
        for bin, held in zip(self._bins, state["held"], strict=True):
            bin.empty()
            for _ in held:
                item = next(items)
                bin.add(item, self._size(*item))


def check_sizes(stage: str, by: object, max_total: float | None, batchsizes: tuple[int | None, ...]) -> None:
    """Refuses what is no measure, limit or number of elements.

    Raises:
        ValueError: A limit is not above 0.
        TypeError: One is no number, or ``by`` cannot be called.

    Example:
        >>> check_sizes("batched", len, 0, (None,))
        Traceback (most recent call last):
        ValueError: batched: a limit must be above 0, got 0
    """
    if not callable(by):
        raise TypeError(f"{stage}: by must be a function that measures an element, got {by!r}")
    if max_total is not None and not isinstance(max_total, Real):
        raise TypeError(f"{stage}: a limit must be a number, got {max_total!r}")
    if max_total is not None and not max_total > 0:
        raise ValueError(f"{stage}: a limit must be above 0, got {max_total}")
    for batchsize in batchsizes:
        if batchsize is not None and not isinstance(batchsize, Integral):
            raise TypeError(f"{stage}: batchsize must be a whole number, got {batchsize!r}")
        if batchsize is not None and batchsize < 1:
            raise ValueError(f"{stage}: batchsize must be at least 1, got {batchsize}")
