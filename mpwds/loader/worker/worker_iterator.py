"""One worker's elements of an epoch from a position on, and its state behind any of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from mpwds.loader.resume.progress import START, Position, pack_state, unpack_state
from mpwds.loader.worker.elements import elements
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.filter import plain
from mpwds.pipeline.parts import culprit, iterates_itself
from mpwds.pipeline.stream import Stream

STATE_EVERY_S = 1.0
"""How often a worker saves its state. A resumed run makes the elements since the last one again."""

STATE_SHARE = 0.01
"""The largest share of a worker's time for saving its state: an expensive state is saved less often."""


class WorkerIterator:
    """Iterates a dataset in one worker, for one epoch.

    It yields the elements from ``position.at`` on; the caller drops those before ``position.first``.
    ``iterate`` iterates a dataset that is not a pipeline of this package.

    Attributes:
        number: Number of the last element in the worker's epoch.
    """

    def __init__(
        self,
        dataset: Any,
        context: Context,
        position: Position = START,
        iterate: Callable[[Any, Context], Iterator[Any]] = elements,
    ) -> None:
        self._position = position
        self._stream: Stream[Any] | None = None
        self._elements: Iterator[Any]
        if isinstance(dataset, DataPipeline) and not iterates_itself(dataset):
            stream = dataset.stream(context)
            if culprit(dataset) is None:
                self._stream = stream
                if position.state is not None:
                    stream.load_state_dict(unpack_state(position.state))
            self._elements = plain(stream)
        else:
            self._elements = iterate(dataset, context)
        self.number = position.at - 1
        self._due = math.inf if self._stream is None else time.monotonic() + STATE_EVERY_S

    def __iter__(self) -> WorkerIterator:
        return self

    def __next__(self) -> Any:
        try:
            element = next(self._elements)
        except StopIteration:
            self._check_end()
            raise
        self.number += 1
        return element

    def state(self, now: float) -> dict[str, Any] | None:
        """The field ``state`` of the message with the last element, if one is due at ``now``.

        Returns:
            ``{"state": bytes}``; or once ``{"state": str}``, the reason why there is no state.
        """
        if now < self._due or self._stream is None:
            return None
        try:
            packed = pack_state(self._stream.state_dict())
        except Exception as error:
            self._due = math.inf
            return {"state": f"{type(error).__name__}: {error}"}
        done = time.monotonic()
        self._due = done + max(STATE_EVERY_S, (done - now) / STATE_SHARE)
        return {"state": packed}

    def close(self) -> None:
        """Closes the iterator, if it can be closed, and the files that it reads."""
        close = getattr(self._elements, "close", None)
        if close is not None:
            close()
        self._elements, self._stream = iter(()), None

    def _check_end(self) -> None:
        given, first = self.number + 1, self._position.first
        if given < first:
            raise RuntimeError(
                f"the dataset ended after {given} elements, {first} were delivered before: it gives other "
                "elements each time it runs, or has changed, so the epoch cannot be continued"
            )
