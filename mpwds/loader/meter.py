"""What a worker measures of its own work.

How long a stage takes is not found by looking where a process stands every few milliseconds: a thread that
looks needs the interpreter's lock, and gets it where the pipeline lets go of it: native code that keeps the
lock would seem to take no time, and reading a file, which lets go of it, all of it.
Nor by looking at the clock around every stage for every element: where elements are small that takes longer
than their work. So elements are drawn at random, as many as 0.3 % of the time pays for, until there
are 100 of them 1 %, and the time of each stage is taken for these (``loader.stage_timer``); the first of an
epoch always, as it fills buffers. What comes out of each stage is counted in full. The counts are written
down at the same moments, and when an epoch ends or a wait begins; those of batches with each large batch.
"""

from __future__ import annotations

import contextlib
import functools
import random
import time
from collections.abc import Iterator
from typing import Any

from mpwds.loader import counters, protocol
from mpwds.loader.counters import OTHER, WRITING, Counters
from mpwds.loader.processor_times import ProcessorTimes
from mpwds.loader.samples_in import sample_counter
from mpwds.loader.stage_timer import StageTimer
from mpwds.pipeline.context import Context
from mpwds.pipeline.stream import Stream

_BUDGET = 0.003
_BUDGET_AT_FIRST = 0.01
_TIMED_AT_FIRST = 100
_CROSSING_NS = 5000  # a quarter to half a microsecond if it is in the processor's cache: work drives it out
_LEAST_CHANCE = 0.02
_MEMORY = 0.9
_PROCESSOR_TIMES_EVERY_NS = 50_000_000


class Meter:
    """Counts and times a worker's work for its trainer.

    Args:
        counters: Where it writes what it finds.
        dataset: What the worker iterates: it tells how many samples are in an element.
        counts_cpu: Whether the processor time of this process is that of the worker.

    Attributes:
        samples_in: Tells how many samples an element is.
        writes_each: Write the counts with small batches, too: for workers that are not at an epoch's end when
            their trainer is.

    Example:
        >>> page = Counters()
        >>> meter = Meter(page, ["a", "b"])
        >>> with meter.epoch():
        ...     for letter in meter.elements(iter("ab")):
        ...         meter.sending(meter.samples_in(letter), nbytes=1)
        >>> page.read().batches
        2
    """

    def __init__(self, counters: Counters, dataset: Any, counts_cpu: bool = True) -> None:
        self._counters = counters
        self.samples_in = sample_counter(dataset)
        self._timer = StageTimer()
        self._numbers: dict[tuple[int, str], int] = {}
        for _ in (OTHER, WRITING):
            counters.describe_stage(self._timer.add_stage(), "", storage=False)
        self._random = random.Random(0)  # of its own: a user's numbers stay as they are
        self._chance = 1.0
        self._weight = 1.0
        self._is_first = True
        self._timed = 0
        self._recent_ns = 0.0
        self._recent_cost_ns = 0.0
        self._batches = self._samples = self._nbytes = 0
        self._not_queued = 1.0  # share of the time that is not spent waiting for a processor
        self._write_next_ns = 0
        self._processor = ProcessorTimes() if counts_cpu else None
        self.writes_each = False

    @contextlib.contextmanager
    def epoch(self) -> Iterator[None]:
        """The time in which the worker has an epoch to do; what is outside is not counted."""
        if self._processor is not None:
            self._processor.resume()
        self._counters.begin(counters.ACTIVE_NS, time.monotonic_ns())
        self._is_first = True
        try:
            yield
        finally:
            if self._timer.running:
                self._conclude()
            self._write_all_counts()
            self._write_processor_times()
            self._counters.end(counters.ACTIVE_NS, time.monotonic_ns())

    def elements(self, source: Iterator[Any]) -> Iterator[Any]:
        """The elements of ``source``; what is done until the next is asked for counts as writing."""
        while True:
            self.making()
            try:
                element = next(source)
            except StopIteration:
                return
            self.made()
            yield element

    def making(self) -> None:
        """The next element is begun: from here on it may be timed."""
        timer = self._timer
        if timer.running:
            self._conclude()
        chance = 1.0 if self._is_first else self._chance
        if chance == 1.0 or self._random.random() < chance:
            self._weight = 1 / chance
            timer.start(OTHER)
        self._is_first = False

    def made(self) -> None:
        """An element is there: what is done until the next one is begun counts as writing."""
        timer = self._timer
        if timer.running:
            timer.enter(WRITING)
            timer.timed[WRITING] += 1

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """A time in which the worker waits for its trainer."""
        self._write_all_counts()
        start_ns = time.monotonic_ns()
        self._counters.begin(counters.WAITING_NS, start_ns)
        try:
            yield
        finally:
            end_ns = time.monotonic_ns()
            self._counters.end(counters.WAITING_NS, end_ns)
            self._timer.leave_out(end_ns - start_ns)

    def sending(self, samples: int, nbytes: int) -> None:
        """Counts a batch, or a single element, before it is sent: who has it finds it counted.

        Args:
            samples: Samples in it.
            nbytes: Bytes of its arrays.
        """
        self._batches += 1
        self._samples += samples
        self._nbytes += nbytes
        if self.writes_each:
            self._write_all_counts()
        elif nbytes > protocol.INLINE_NBYTES:
            self._write_counts()

    def _write_counts(self) -> None:
        self._counters.set(counters.BATCHES, self._batches)
        self._counters.set(counters.SAMPLES, self._samples)
        self._counters.set(counters.NBYTES, self._nbytes)

    def _write_all_counts(self) -> None:
        self._write_counts()
        for stage, elements in enumerate(self._timer.elements):
            if elements:
                self._counters.set_elements(stage, elements)

    def watch(self, part: Any, stream: Stream[Any], context: Context) -> Stream[Any]:
        """Times a part of a pipeline and counts what its error handler leaves out: see ``Context.watch``."""
        if hasattr(part, "parts"):  # a pipeline, or a mix of some: their own parts are watched
            return stream
        name = name_of(part)
        key = context.stage, name
        if key not in self._numbers:
            storage = getattr(part, "reads_shards", False)
            self._numbers[key] = self._counters.describe_stage(self._timer.add_stage(), name, storage)
        if hasattr(stream, "on_skipped"):
            stream.on_skipped = functools.partial(self._skipped, name)
        return self._timer.between(stream, self._numbers[key])

    def _skipped(self, stage: str, error: Exception) -> None:
        self._counters.count_skipped(f"{stage}: {type(error).__name__}")

    def _conclude(self) -> None:
        """Writes down what the element cost that was timed, and how likely the next are."""
        timer = self._timer
        timer.stop()
        time_ns, timed, weight = timer.time_ns, timer.timed, self._weight
        for stage, (spent_ns, came_out) in enumerate(zip(time_ns, timed, strict=True)):
            if spent_ns or came_out:
                self._counters.add_to_stage(stage, round(spent_ns * weight), round(came_out * weight))
        crossings = sum(timed) + 2 * len(timed)
        self._recent_ns = self._recent_ns * _MEMORY + sum(time_ns) * self._not_queued
        self._recent_cost_ns = self._recent_cost_ns * _MEMORY + crossings * _CROSSING_NS
        self._timed += 1
        budget = _BUDGET_AT_FIRST if self._timed < _TIMED_AT_FIRST else _BUDGET
        self._chance = min(1.0, max(_LEAST_CHANCE, budget * self._recent_ns / self._recent_cost_ns))
        time_ns[:] = timed[:] = [0] * len(timed)
        self._write_all_counts()
        if time.monotonic_ns() > self._write_next_ns:
            self._write_processor_times()

    def _write_processor_times(self) -> None:
        if self._processor is not None:
            cpu_ns, queued_ns = self._processor.read()
            self._not_queued = 1 - self._processor.queued_share
            self._counters.set(counters.CPU_NS, cpu_ns)
            self._counters.set(counters.QUEUED_NS, queued_ns)
            self._write_next_ns = time.monotonic_ns() + _PROCESSOR_TIMES_EVERY_NS


def name_of(part: Any) -> str:
    """How a part of a pipeline prints, in one line that is the same in all workers."""
    kind: Any = type(part)
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        return str(kind.__name__)
    return str(part).partition("\n")[0]
