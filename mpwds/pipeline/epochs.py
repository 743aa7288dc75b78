"""How much of a pipeline is an epoch: all of it, several times all of it, or so many elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from mpwds.pipeline.context import Context
from mpwds.pipeline.repetitions import Repetitions, Start
from mpwds.pipeline.stream import Address, Description, Stream


@dataclass(frozen=True)
class Epochs:
    """How often a pipeline is run for one epoch, and after how many elements the epoch ends.

    Each repetition is another epoch to the pipeline's stages: it shuffles in another order and augments with
    other random numbers. An element's address is (repetition, address in it). A repetition that
    gives nothing is the last.

    Args:
        repetitions: How often to run the pipeline; without end where ``None``.
        limit: Elements in an epoch; as many as there are where ``None``.

    Raises:
        ValueError: ``repetitions`` or ``limit`` is below 1.

    Example:
        >>> from mpwds.pipeline.stream import Source
        >>> [element for _, element in Epochs(None, 5).stream(lambda context: Source("abc"), Context())]
        ['a', 'b', 'c', 'a', 'b']
    """

    repetitions: int | None = 1
    limit: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("number of repetitions", self.repetitions), ("number of elements", self.limit)):
            if value is not None and value < 1:
                raise ValueError(f"an epoch's {name} must be at least 1, got {value}")

    def __str__(self) -> str:
        if self.repetitions is None:
            return "repeat()" if self.limit is None else f"with_epoch({self.limit})"
        limit = "" if self.limit is None else f", {self.limit}"
        return f"repeat({self.repetitions}{limit})"

    def stream(self, start: Start, context: Context) -> Stream[Any]:
        """The stream of one epoch.

        Args:
            start: Makes the stream that runs the pipeline once.
            context: The epoch's.
        """
        return start(context) if self == ONCE else _Repeated(self, start, context)


ONCE: Final = Epochs()


class _Repeated:
    def __init__(self, epochs: Epochs, start: Start, context: Context) -> None:
        self._repetitions = epochs.repetitions
        self._left = epochs.limit
        self._runs = Repetitions(start, context)
        self._empty = True  # the run under way has given nothing

    def __iter__(self) -> _Repeated:
        return self

    def __next__(self) -> tuple[Address, Any]:
        if self._left == 0:
            raise StopIteration
        runs = self._runs
        while True:
            try:
                address, element = next(runs.stream)
                break
            except StopIteration:
                if self._empty or runs.number + 1 == self._repetitions:
                    self._left = 0
                    raise
            runs.begin(runs.number + 1)
            self._empty = True
        self._empty = False
        if self._left is not None:
            self._left -= 1
        return (runs.number, address), element

    def fetch(self, address: Any) -> Any:
        repetition, address = address
        return self._runs.at(repetition).fetch(address)

    def describe(self, address: Any, element: object = None) -> Description:
        repetition, address = address
        return self._runs.at(repetition).describe(address, element)

    def state_dict(self) -> dict[str, Any]:
        return {**self._runs.state_dict(), "empty": self._empty, "left": self._left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._runs.load_state_dict(state)
        self._empty, self._left = state["empty"], state["left"]
