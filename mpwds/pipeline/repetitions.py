"""Run a source again and again, each time as another epoch of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from mpwds.pipeline.context import Context
from mpwds.pipeline.randomness import Draws
from mpwds.pipeline.stream import Stream

Start: TypeAlias = Callable[[Context], Stream[Any]]
"""Makes the stream that runs a source once."""


_FIRST = 1 << 62  # of the epochs that are repetitions; those before are numbered by the user


class Repetitions:
    """The runs of a source within one epoch, of which one is under way.

    Args:
        start: Makes the stream of a run.
        context: The epoch's: that of the first run. The others have epochs of their own.

    Attributes:
        number: Number of the run under way, from 0.
        stream: Its stream.

    Example:
        >>> from mpwds.pipeline.stream import Source
        >>> runs = Repetitions(lambda context: Source([context.epoch]), Context(epoch=3))
        >>> next(runs.stream)[1]
        3
        >>> runs.begin(1)
        >>> next(runs.stream)[1] > 2**62
        True
    """

    def __init__(self, start: Start, context: Context) -> None:
        self._start = start
        self._context = context
        self.begin(0)
        self._other: tuple[int, Stream[Any]] = 0, self.stream  # the run that was fetched from last

    def begin(self, number: int) -> None:
        """Starts run ``number``."""
        self.number = number
        self.stream = self._run(number)

    def at(self, number: int) -> Stream[Any]:
        """A stream of run ``number``, to fetch elements from."""
        if number == self.number:
            return self.stream
        if self._other[0] != number:
            self._other = number, self._run(number)
        return self._other[1]

    def _run(self, number: int) -> Stream[Any]:
        epoch = self._context.epoch
        if number:  # nor one of a repetition inside a repetition
            epoch = epoch_of_repetition(number, epoch, self._context.stage)
        return self._start(replace(self._context, epoch=epoch))

    def state_dict(self) -> dict[str, Any]:
        return {"repetition": self.number, "source": self.stream.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begin(state["repetition"])
        self.stream.load_state_dict(state["source"])


def is_repetition(epoch: int) -> bool:
    """Whether :func:`epoch_of_repetition` numbered an epoch."""
    return epoch >= _FIRST


def epoch_of_repetition(number: int, *facts: object) -> int:
    """The number of an epoch that no run of any other epoch has.

    Args:
        number: Number of the repetition.
        facts: What is repeated.

    Example:
        >>> epoch_of_repetition(1, 3) == epoch_of_repetition(1, 3) != epoch_of_repetition(2, 3)
        True
    """
    return _FIRST + Draws("repetition", *facts).index(number, _FIRST)
