"""Counts and times a worker's work.

All elements are counted: each passes through a :class:`_Watched` stream, which takes about 50 ns. Timing one
takes longer than small elements do. So only some batches are timed, each as a whole: the first of an epoch,
which fills buffers, then as many as fit into 1 % of the time, at random distances. A batch that is timed
stands for those since the one before.
"""

from __future__ import annotations

import contextlib
import functools
import random
import threading
import time
from collections.abc import Callable, Generator, Iterator
from types import FunctionType
from typing import Any

from mpwds.pipeline.context import Context
from mpwds.pipeline.filter import ErrorHandlingStream
from mpwds.pipeline.stream import BaseStream, Part, Stream, WrappedStream
from mpwds.stats.counters import Counters, StageCounters
from mpwds.stats.snapshot import stage_name

_BUDGET = 0.01
_ELEMENT_NS = 1000  # of timing one: a third of it where the clock is in the processor's cache
_PROCESSOR_TIMES_EVERY_NS = 50_000_000
_SMALL_NBYTES = 32 << 10  # of a batch: writing the counts of each smaller one would take a part of its time


class StageProfiler:
    """Counts and times a worker's work, with the processor time of its process if ``counts_cpu``.

    Attributes:
        samples_in: Returns the number of samples in an element.
        writes_each: Write the counts with small batches, too: for workers that are not at an epoch's end when
            their trainer is.
        timing: Whether the batch that is being made is timed.
        thread: The thread whose work is timed; that of a stage's own threads is not.
    """

    def __init__(self, counters: Counters, samples_in: Callable[[Any], int], counts_cpu: bool = True) -> None:
        self._counters = counters
        self.samples_in = samples_in
        self._stages: dict[tuple[int, str], _Stage] = {}
        self._other, self._writing = self._stage(-2, ""), self._stage(-1, "")  # in the order of the counters
        self._batches = self._samples = self._nbytes = 0
        self._counts_cpu = counts_cpu
        self._cpu_ns = self._queued_ns = 0
        self._write_next_ns = 0
        self.writes_each = False
        self.timing = False
        self._random = random.Random(0)  # of its own: a user's numbers stay as they are
        self._stands_for = 0
        self._skip = 0
        self.thread = 0
        self._timed = 0
        self._now_in = self._other
        self._since_ns = 0

    def epoch(self) -> contextlib.AbstractContextManager[None]:
        """The time in which the worker has an epoch to do; its first batch is timed."""
        self._skip = 0
        return self.active()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """A time in which the worker has something to do; time outside is not counted."""
        if self._counts_cpu:
            self._cpu_ns, self._queued_ns = time.process_time_ns(), _queued_ns()
        self._counters.active_ns -= time.monotonic_ns()
        try:
            yield
        finally:
            if self.timing:
                self._conclude()
            self._write_all_counts()
            self._write_processor_times()
            self._counters.active_ns += time.monotonic_ns()

    def elements(self, source: Iterator[Any]) -> Generator[Any, None, None]:
        """The elements of ``source``; the time until the next is asked for counts as writing."""
        while True:
            self.making()
            try:
                element = next(source)
            except StopIteration:
                return
            self.made()
            yield element

    def making(self) -> None:
        """A batch begins; it may be timed."""
        if self.timing:
            self._conclude()
        self._stands_for += 1
        if self._stands_for > self._skip:
            self.timing = True
            self.thread = threading.get_ident()
            self._now_in, self._since_ns = self._other, time.monotonic_ns()

    def made(self) -> None:
        """A batch is made: the time until the next one begins counts as writing."""
        if self.timing:
            self.enter(self._writing)

    def enter(self, stage: _Stage) -> _Stage:
        """Counts the time from now on as that of ``stage``; returns the stage whose time it was."""
        now_ns = time.monotonic_ns()
        left = self._now_in
        left.time_ns += now_ns - self._since_ns
        self._now_in, self._since_ns = stage, now_ns
        self._timed += 1
        return left

    @contextlib.contextmanager
    def _time_of(self, stage: _Stage) -> Iterator[None]:
        left = self.enter(stage) if self.timing else None
        try:
            yield
        finally:
            if left is not None:
                self.enter(left)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """A time in which the worker waits for its trainer."""
        self._write_all_counts()
        start_ns = time.monotonic_ns()
        self._counters.waiting_ns -= start_ns
        try:
            yield
        finally:
            end_ns = time.monotonic_ns()
            self._counters.waiting_ns += end_ns
            self._since_ns += end_ns - start_ns

    def sending(self, samples: int, nbytes: int) -> None:
        """Counts a batch, or a single element, before it is sent, so that its receiver finds it counted."""
        self._batches += 1
        self._samples += samples
        self._nbytes += nbytes
        if self.writes_each:
            self._write_all_counts()
        elif nbytes > _SMALL_NBYTES:
            self._write_counts()

    def watch(self, part: Part, stream: Stream[Any], context: Context) -> Stream[Any]:
        """Times a part of a pipeline and counts what its error handler leaves out: see ``Context.watch``."""
        if part.parts:  # a pipeline, or a mix of some: their own parts are watched
            return stream
        name = stage_name(part)
        stage = self._stage(context.stage, name, part.reads_shards)
        if isinstance(stream, ErrorHandlingStream):
            stream.on_skipped, stream.counts = functools.partial(self._skipped, name), stage
            stream.timed = functools.partial(self._time_of, stage)
        watched: Stream[Any] = stage.stream_class(stream, stage, self)
        return watched

    def _stage(self, number: int, name: str, storage: bool = False) -> _Stage:
        stage = self._stages.get((number, name))
        if stage is None:
            stage = _Stage(name, self._counters.describe_stage(len(self._stages), name, storage))
            self._stages[number, name] = stage
        return stage

    def _skipped(self, stage: str, error: Exception) -> None:
        self._counters.count_skipped(f"{stage}: {type(error).__name__}")

    def _conclude(self) -> None:
        """Writes the times of the batch that was timed, and chooses the next one."""
        self.enter(self._other)
        self.timing = False
        whole_ns = 0
        for stage in self._stages.values():
            if stage.time_ns:
                whole_ns += stage.time_ns
                stage.counters.time_ns += stage.time_ns * self._stands_for
                stage.time_ns = 0
        pays_after = self._timed / 2 * _ELEMENT_NS / (_BUDGET * max(whole_ns, 1))
        self._skip = round(self._random.uniform(0, 2 * pays_after))
        self._stands_for = self._timed = 0
        self._write_all_counts()
        if time.monotonic_ns() > self._write_next_ns:
            self._write_processor_times()

    def _write_counts(self) -> None:
        counters = self._counters
        counters.batches, counters.samples, counters.nbytes = self._batches, self._samples, self._nbytes

    def _write_all_counts(self) -> None:
        self._write_counts()
        for stage in self._stages.values():
            stage.counters.elements, stage.counters.nbytes = stage.elements, stage.nbytes

    def _write_processor_times(self) -> None:
        if self._counts_cpu:
            cpu_ns, queued_ns = time.process_time_ns(), _queued_ns()
            self._counters.cpu_ns += cpu_ns - self._cpu_ns
            self._counters.queued_ns += queued_ns - self._queued_ns
            self._cpu_ns, self._queued_ns = cpu_ns, queued_ns
            self._write_next_ns = time.monotonic_ns() + _PROCESSOR_TIMES_EVERY_NS


class _Watched(WrappedStream[Any]):
    """A stage's stream, counted and, while a batch is timed, timed.

    Each stage has a subclass, whose ``__next__`` is called ``stage map(crop)``. So stacks name the stages:
    those of errors, and that of a stuck worker (``counters.stage_in``).
    """

    def __init__(self, stream: Stream[Any], stage: _Stage, meter: StageProfiler) -> None:
        super().__init__(stream)
        self.skip = stream.skip if isinstance(stream, BaseStream) else None
        self._stage = stage
        self._meter = meter

    def __next__(self) -> Any:
        stage, meter = self._stage, self._meter
        if meter.timing and meter.thread == threading.get_ident():
            outer = meter.enter(stage)
            try:
                item = self._next()
            finally:
                meter.enter(outer)
        else:
            item = self._next()
        stage.elements += 1
        return item

    def state_dict(self) -> dict[str, Any]:
        return self._source.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._source.load_state_dict(state)


class _Stage:
    """A stage, its elements, the bytes that it read, and its time in the batch that is being timed."""

    def __init__(self, name: str, counters: StageCounters) -> None:
        self.counters = counters
        self.elements = self.nbytes = 0
        self.time_ns = 0
        code = _Watched.__next__.__code__.replace(co_name=f"stage {name}")
        self.stream_class = type("_Watched", (_Watched,), {"__next__": FunctionType(code, globals())})


def _queued_ns() -> int:
    """Nanoseconds that this thread waited for a processor; 0 where the kernel does not tell."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read(100).split()[1])
    except (OSError, ValueError, IndexError):
        return 0
