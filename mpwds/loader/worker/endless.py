"""Streams that go on after their end, so that all streams of an epoch can be equally long.

``streams=`` with ``even="pad"`` or ``"wrap"`` makes whole rounds of all streams. A stream cannot know how
long the others are. So it goes on as long as it is asked, and tells that its elements are repeats.
"""

from __future__ import annotations

from typing import Any

from mpwds.loader.resume.progress import AfterEnd
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.epochs import Epochs, RepeatedStream
from mpwds.pipeline.stream import Address, Stream, WrappedStream, as_address


def endless(
    stream: Stream[Any], dataset: DataPipeline, context: Context, after_end: AfterEnd
) -> WrappedAround | PaddedStream:
    """A stream of a pipeline that goes on after its end."""
    if after_end == "wrap":
        return WrappedAround(Epochs(repetitions=None), dataset.stream, context)
    return PaddedStream(stream, fetches=dataset.non_resumable_part is None)


class WrappedAround(RepeatedStream):
    """Yields a stream's elements, then those of other passes. It ends after a pass without elements."""

    @property
    def repeats(self) -> bool:
        """True if the last element came after the first pass."""
        return self._runs.number > 0


class PaddedStream(WrappedStream[Any]):
    """Yields a stream's elements, then the last one again and again. An empty stream stays empty.

    A stream that ``fetches`` makes the last element again when it is wanted. Another one keeps it.
    """

    def __init__(self, source: Stream[Any], fetches: bool) -> None:
        super().__init__(source)
        self._fetches = fetches
        self._last: tuple[Address, Any] | None = None  # the element is None until it is fetched
        self.repeats = False

    def __next__(self) -> tuple[Address, Any]:
        if not self.repeats:
            try:
                address, element = item = self._next()
            except StopIteration:
                if self._last is None:
                    raise
                self.repeats = True
            else:
                self._last = (address, None) if self._fetches else item
                return address, element
        assert self._last is not None
        address, element = self._last
        if element is None and self._fetches:
            self._last = address, self._source.fetch(address)
        return self._last

    def state_dict(self) -> dict[str, Any]:
        last = [] if self._last is None else [self._last[0]]
        return {**super().state_dict(), "held": last, "repeats": self.repeats}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._last = next(((as_address(address), None) for address in state["held"]), None)
        self.repeats = state["repeats"]
