"""The length of an epoch: one run of the pipeline, several runs, or a number of elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, TypeAlias

from mpwds.pipeline.context import Context
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.randomness import Draws
from mpwds.pipeline.stream import Address, BaseStream, Count, Description, LengthUnknown, Stream
from mpwds.warn import warn

Start: TypeAlias = Callable[[Context], Stream[Any]]  # makes the stream that runs a source once

_FIRST = 1 << 62  # numbers of repetitions begin here; the user numbers the epochs below


@dataclass(frozen=True)
class Epochs:
    """The number of runs of a pipeline in one epoch, and of elements after which it ends; ``None``: no limit.

    To the stages each repetition is another epoch. An element's address is (repetition, address in it). An
    empty repetition ends the epoch; if ``limit`` is not reached, that is a ``RuntimeWarning`` and not an
    error, because a worker may have no shards.
    """

    repetitions: int | None = 1
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"an epoch's number of elements must be at least 1, got {self.limit}")

    def __str__(self) -> str:
        if self.repetitions is None:
            return "repeat()" if self.limit is None else f"with_epoch({self.limit})"
        limit = "" if self.limit is None else f", {self.limit}"
        return f"repeat({self.repetitions}{limit})"

    def count_of(self, stages: Iterable[Filter], count: Count) -> Count:
        """Counts the elements that stages make in an epoch, of ``count`` in each run, or LengthUnknown."""
        for stage in stages:
            count = stage.count_of(count)
        if count.elements == 0:
            return count
        if self.repetitions is not None:
            repeated = count.times(self.repetitions)
            if self.limit is None or repeated.elements <= self.limit:
                return repeated
        if self.limit is None:
            raise LengthUnknown("repeat() has no end")
        return Count(self.limit)

    def stream(self, start: Start, context: Context) -> Stream[Any]:
        """The stream of one epoch; ``start`` makes the stream of one run."""
        return start(context) if self == ONCE else RepeatedStream(self, start, context)


ONCE: Final = Epochs()


class RepeatedStream(BaseStream[Any]):
    """The stream of an epoch of several runs."""

    _counters: ClassVar[tuple[str, ...]] = ("_empty", "_left")

    def __init__(self, epochs: Epochs, start: Start, context: Context) -> None:
        self._epochs = epochs
        self._context = context
        self._left = epochs.limit
        self._runs = Repetitions(start, context)
        self._empty = True  # the current run has given nothing

    def __next__(self) -> tuple[Address, Any]:
        if self._left == 0:
            raise StopIteration
        item = self._advance()
        if self._left is not None:
            self._left -= 1
        return item

    def _advance(self) -> tuple[Address, Any]:
        runs = self._runs
        while True:
            try:
                address, element = next(runs.stream)
                break
            except StopIteration:
                if self._empty or runs.number + 1 == self._epochs.repetitions:
                    if self._left and self._epochs.repetitions is None:
                        self._warn_of_shortage(self._left)
                    self._left = 0
                    raise
            runs.begin(runs.number + 1)
            self._empty = True
        self._empty = False
        return (runs.number, address), element

    def _warn_of_shortage(self, missing: int) -> None:
        context = self._context
        given = (self._epochs.limit or 0) - missing
        if context.worker and not given and not self._runs.number:
            context.on_idle()
            return
        run = f" in repetition {self._runs.number}" if self._runs.number else ""
        warn(
            f"{self._epochs} ends after {given} elements: the dataset is empty{run}, in {context.place}. "
            "Check its paths and filters, and whether there are fewer shards than workers"
        )

    def fetch(self, address: Any) -> Any:
        repetition, address = address
        return self._runs.at(repetition).fetch(address)

    def describe(self, address: Any, element: object = None) -> Description:
        repetition, address = address
        return self._runs.at(repetition).describe(address, element)

    def state_dict(self) -> dict[str, Any]:
        return {**self._runs.state_dict(), **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._runs.load_state_dict(state)
        super().load_state_dict(state)


class Repetitions:
    """The runs of a source within an epoch: the current one, ``number`` from 0, has the stream ``stream``."""

    def __init__(self, start: Start, context: Context) -> None:
        self._start = start
        self._context = context
        self.begin(0)
        self._other: tuple[int, Stream[Any]] = 0, self.stream  # the run that fetch used last

    def begin(self, number: int) -> None:
        self.number = number
        self.stream = self._run(number)

    def at(self, number: int) -> Stream[Any]:
        """A stream of run ``number``, for ``fetch`` and ``describe``."""
        if number == self.number:
            return self.stream
        if self._other[0] != number:
            self._other = number, self._run(number)
        return self._other[1]

    def _run(self, number: int) -> Stream[Any]:
        epoch = self._context.epoch
        if number:
            epoch = epoch_of_repetition(number, epoch, self._context.stage)
        return self._start(replace(self._context, epoch=epoch))

    def state_dict(self) -> dict[str, Any]:
        return {"repetition": self.number, "source": self.stream.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begin(state["repetition"])
        self.stream.load_state_dict(state["source"])


def is_repetition(epoch: int) -> bool:
    """True if :func:`epoch_of_repetition` made this epoch number."""
    return epoch >= _FIRST


def epoch_of_repetition(number: int, *facts: object) -> int:
    """An epoch number for repetition ``number`` of what ``facts`` identify, different from all others."""
    return _FIRST + Draws("repetition", *facts).index(number, _FIRST)
