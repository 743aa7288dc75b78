"""How the time that a pipeline takes for an element is shared by its stages."""

from __future__ import annotations

import functools
import itertools
import operator
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from mpwds.pipeline.stream import Description, Stream

Advance = Callable[[], Any]


class StageTimer:
    """Takes the time of each stage, without the stages before it, and counts what comes out of it.

    It stands between the stages: each gets its elements through a function that can be exchanged. While the
    timer is stopped that is a ``functools.partial`` of the source's own ``__next__``, which costs some 40
    nanoseconds; while it runs, one that looks at the clock on both sides of it, for half a microsecond, or
    several where the stages' work has driven it out of the processor's cache. Elements are counted at all
    times, by iterators of ``itertools`` around that function, which costs next to nothing.

    Only the thread that started the timer is timed; what a stage does in others is counted alone.

    Attributes:
        time_ns: Nanoseconds by stage, since they were last set to 0.
        timed: Elements that came out while it ran, by stage, since they were last set to 0.
        running: Whether it runs.

    Example:
        >>> from mpwds.pipeline.stream import Source
        >>> timer = StageTimer()
        >>> stream = timer.between(Source("abc"), timer.add_stage())
        >>> timer.start(timer.add_stage())
        >>> next(stream)
        (0, 'a')
        >>> timer.stop()
        >>> next(stream)
        (1, 'b')
        >>> timer.timed, timer.elements
        ([1, 0], [2, 0])
    """

    def __init__(self) -> None:
        self.time_ns: list[int] = []
        self.timed: list[int] = []
        self.running = False
        self._counters: list[itertools.repeat[bool]] = []
        self._now_in = 0
        self._since_ns = 0
        self._thread = 0
        self._timed: weakref.WeakSet[_Timed] = weakref.WeakSet()

    def add_stage(self) -> int:
        """The number of another stage."""
        self.time_ns.append(0)
        self.timed.append(0)
        self._counters.append(itertools.repeat(True, sys.maxsize))
        return len(self.time_ns) - 1

    @property
    def elements(self) -> list[int]:
        """Elements that came out in all, by stage."""
        return [sys.maxsize - operator.length_hint(counter) for counter in self._counters]

    def between(self, stream: Stream[Any], stage: int) -> Stream[Any]:
        """The same stream, timed as the stage ``stage``."""
        timed = _Timed(stream, self._timing(stream.__next__, stage), self._counters[stage])
        self._timed.add(timed)
        if self.running:
            timed.switch(True)
        return timed

    def start(self, stage: int) -> None:
        """Starts; what is not spent in one of the streams counts as ``stage``."""
        self._thread = threading.get_ident()
        for timed in self._timed:
            timed.switch(True)
        self.running = True
        self._now_in, self._since_ns = stage, time.monotonic_ns()

    def enter(self, stage: int) -> None:
        """From now on what is not spent in one of the streams counts as ``stage``."""
        now_ns = time.monotonic_ns()
        self.time_ns[self._now_in] += now_ns - self._since_ns
        self._now_in, self._since_ns = stage, now_ns

    def leave_out(self, nanoseconds: int) -> None:
        """Counts as nothing a time that has just passed."""
        self._since_ns += nanoseconds

    def stop(self) -> None:
        """Stops."""
        self.enter(self._now_in)
        self.running = False
        for timed in self._timed:
            timed.switch(False)

    def _timing(self, advance: Advance, stage: int) -> Advance:
        clock, this_thread = time.monotonic_ns, threading.get_ident
        time_ns, timed = self.time_ns, self.timed

        def advance_timed() -> Any:
            if this_thread() != self._thread:
                return advance()
            now_ns = clock()
            outer = self._now_in
            time_ns[outer] += now_ns - self._since_ns
            self._now_in, self._since_ns = stage, now_ns
            try:
                element = advance()
                timed[stage] += 1
                return element
            finally:
                now_ns = clock()
                time_ns[stage] += now_ns - self._since_ns
                self._now_in, self._since_ns = outer, now_ns

        return advance_timed


class _Timed:
    """A stream through a function that can be exchanged, whose elements each take one from a counter."""

    def __init__(self, stream: Stream[Any], timing: Advance, counter: itertools.repeat[bool]) -> None:
        self._stream = stream
        self._plain = stream.__next__
        self._timing = timing
        self._advance = functools.partial(self._plain)
        calls = itertools.starmap(self._advance, itertools.repeat(()))
        self._count = itertools.compress(calls, counter).__next__
        # Found before the method below by whoever takes it from the stream once, as stages do.
        self.__dict__["__next__"] = self._count

    def switch(self, timed: bool) -> None:
        # What a partial calls cannot be assigned, only restored.
        self._advance.__setstate__((self._timing if timed else self._plain, (), {}, None))  # type: ignore[attr-defined]  # typeshed leaves it out

    def __iter__(self) -> _Timed:
        return self

    def __next__(self) -> Any:
        return self._count()

    def fetch(self, address: Any) -> Any:
        return self._stream.fetch(address)

    def describe(self, address: Any, element: object = None) -> Description:
        return self._stream.describe(address, element)

    def state_dict(self) -> dict[str, Any]:
        return self._stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._stream.load_state_dict(state)
