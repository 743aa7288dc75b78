"""The stage ``prefetch``: the stages between a loader and it run in a thread, ahead of the training loop."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, ClassVar

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.error_context import check_whole
from mpwds.pipeline.filter import PassThroughStage
from mpwds.pipeline.randomness import CHECKED, FORBIDDEN, saved_rng
from mpwds.pipeline.stream import Address, Stream, WrappedStream
from mpwds.storage.streams.ahead import Threads, check_fork


@dataclass(frozen=True)
class Prefetched(PassThroughStage, called="prefetch"):
    n: int
    runs_ahead: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole("prefetch", "n", self.n, least=1)

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return PrefetchedStream(source, self.n)


class PrefetchedStream(WrappedStream[Any]):
    """The elements of a source, made by one thread, at most ``count`` ahead.

    The thread takes the source's state before it makes an element. This stream's state is that of the source
    before the first element that waits here, as if nothing had been made ahead.

    Threads share random generators. So the first element is made while the caller waits, and functions that
    draw are refused; later, functions are called without seeds.
    """

    def __init__(self, source: Stream[Any], count: int) -> None:
        super().__init__(source)
        self._count = count
        self._process = os.getpid()
        self._begin()

    def _begin(self) -> None:
        self._waiting: deque[tuple[Future[Any], Future[Any]]] = deque()  # states, and elements
        self._most = 1
        self._thread: Threads[Callable[[], Any], Any] = Threads(lambda work: work(), 1)
        self._make = _made(self._next).__next__

    def __next__(self) -> tuple[Address, Any]:
        check_fork(self._process)
        self._take_ahead()
        _, made = self._waiting[0]
        try:
            item: tuple[Address, Any] = made.result()
        except KeyboardInterrupt:
            raise  # while it was waited for
        except BaseException:
            self._waiting.popleft()
            raise
        finally:
            del made  # its error has this frame
        self._waiting.popleft()
        self._most = self._count
        self._take_ahead()
        return item

    def _take_ahead(self) -> None:
        while len(self._waiting) < self._most:
            submit = self._thread.submit
            self._waiting.append((submit(self._source.state_dict), submit(self._make)))

    def state_dict(self) -> dict[str, Any]:
        check_fork(self._process)
        if not self._waiting:
            return super().state_dict()
        return {"source": self._waiting[0][0].result()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._thread.close()
        super().load_state_dict(state)
        self._begin()


def _made(advance: Callable[[], Any]) -> Iterator[Any]:
    """The elements of a source, made in the thread; none after an error."""
    while True:
        saved_rng.draws = saved_rng.draws or CHECKED
        try:
            item = advance()
        except StopIteration:
            return
        saved_rng.draws = FORBIDDEN
        yield item
