"""Collects what a loader's epochs count: the workers' counters and the consumer's clock."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field
from operator import sub
from typing import TYPE_CHECKING, Any, Literal, Protocol

from mpwds.pipeline.filter import ErrorHandlingStream
from mpwds.stats.snapshot import NOTHING_COUNTED, CounterSnapshot, added, stage_name

if TYPE_CHECKING:
    from mpwds.pipeline.context import Context
    from mpwds.pipeline.stream import Stream
    from mpwds.stats.report import LoaderStats

Since = Literal["epoch", "start"]

WAITED, RECEIVED, _ELSEWHERE, _STAGES = range(4)
"""What a consumer does: waits for a batch, receives one, does its own work, or runs stages after a loader."""


@dataclass(frozen=True)
class ConsumerSnapshot:
    """Counters of a training process in one or more epochs, the first attributes as in ``LoaderStats``.

    Rates leave out the first batch of each epoch, which counts as ``first_batches`` and so on. After the
    first batch, all programs together took ``busy_s`` of the processors' time, this process ``cpu_s``.
    """

    first_batch_s: float = 0.0
    waited_s: float = 0.0
    received_s: float = 0.0
    elsewhere_s: float = 0.0
    stages_s: float = 0.0
    batches: int = 0
    samples: int = 0
    nbytes: int = 0
    first_batches: int = 0
    first_samples: int = 0
    first_nbytes: int = 0
    busy_s: float = 0.0
    cpu_s: float = 0.0

    def __add__(self, more: ConsumerSnapshot) -> ConsumerSnapshot:
        return ConsumerSnapshot(*map(sum, zip(astuple(self), astuple(more), strict=True)))

    def __sub__(self, before: ConsumerSnapshot) -> ConsumerSnapshot:
        return ConsumerSnapshot(*map(sub, astuple(self), astuple(before)))


class ConsumerTimer:
    """The clock of an epoch's iterator. Another thread may read it at any time.

    If a thread ``runs_ahead``, what it does takes the consumer's time only while this waits for the stages.
    """

    runs_ahead = False
    _ahead = _STAGES  # what the thread does

    def __init__(self) -> None:
        self._began_ns = self._since_ns = time.monotonic_ns()
        self._spent_ns = [0, 0, 0, 0]
        self._stages_before_ns = self._untimed_stages_ns = 0
        self._doing = self._outside = _ELSEWHERE
        self._first = (0, 0, 0)
        self._used_first = self._used_last = (0.0, 0.0)
        self._batches = self._samples = self._nbytes = 0
        self._running = True

    def enter(self, doing: int, of_stages: bool = False) -> None:
        """The time from now on is ``WAITED`` (``next()`` begins) or ``RECEIVED`` (a batch's data is here)."""
        if not self._running:
            return
        if self.runs_ahead and not of_stages:
            self._ahead = doing
            if self._outside == _ELSEWHERE:
                return
        now_ns = time.monotonic_ns()
        self._spent_ns[self._doing] += now_ns - self._since_ns
        self._since_ns, self._doing = now_ns, doing

    def delivered(self, samples: int, nbytes: int) -> None:
        """``next()`` returns a batch."""
        self.enter(_STAGES if self.runs_ahead else self._outside)
        self._samples += samples
        self._nbytes += nbytes
        if self._batches == 0:
            self._first = self._since_ns - self._began_ns, samples, nbytes
            self._spent_ns = [0, 0, 0, 0]
            self._untimed_stages_ns = 0
            self._used_first = _used_s()
        self._batches += 1

    def left(self) -> None:
        """``next()`` ends without a batch."""
        self.enter(_STAGES if self.runs_ahead else self._outside)

    def stages_began(self) -> None:
        """The stages after the loader begin to make an element, and may ask for batches."""
        self._stages_before_ns = self._spent_ns[_STAGES]
        self._outside = _STAGES
        self.enter(self._ahead, of_stages=True)

    def stages_ended(self, weight: float) -> None:
        """The stages have made an element, which stands for ``weight`` elements, or have ended."""
        self._outside = _ELSEWHERE
        self.enter(_ELSEWHERE, of_stages=True)
        timed_ns = max(0, self._spent_ns[_STAGES] - self._stages_before_ns)
        self._untimed_stages_ns += round(timed_ns * (weight - 1))

    def end(self) -> None:
        """The epoch is over: the clock stops."""
        self.enter(_ELSEWHERE, of_stages=True)
        if self._running and self._batches and not sys.is_finalizing():  # then there is no open()
            self._used_last = _used_s()
        self._running = False

    def read(self) -> ConsumerSnapshot:
        spent_ns = list(self._spent_ns)
        untimed_ns = min(self._untimed_stages_ns, spent_ns[_ELSEWHERE])
        if self._running:
            doing, since_ns = self._doing, self._since_ns  # before the clock: another thread may set them
            spent_ns[doing] += time.monotonic_ns() - since_ns
        if not self._batches:  # all the time so far went into the first batch
            return ConsumerSnapshot(first_batch_s=sum(spent_ns) / 1e9)
        first_ns, first_samples, first_nbytes = self._first
        busy_s, cpu_s = _used_s() if self._running else self._used_last
        return ConsumerSnapshot(
            first_batch_s=first_ns / 1e9,
            waited_s=spent_ns[WAITED] / 1e9,
            received_s=spent_ns[RECEIVED] / 1e9,
            elsewhere_s=(spent_ns[_ELSEWHERE] - untimed_ns) / 1e9,
            stages_s=(spent_ns[_STAGES] + untimed_ns) / 1e9,
            batches=self._batches,
            samples=self._samples,
            nbytes=self._nbytes,
            first_batches=1,
            first_samples=first_samples,
            first_nbytes=first_nbytes,
            busy_s=busy_s - self._used_first[0],
            cpu_s=cpu_s - self._used_first[1],
        )


def _used_s() -> tuple[float, float]:
    """The time that programs have used of this process' processors, and that of this process alone."""
    mine = {b"cpu%d" % number for number in os.sched_getaffinity(0)}
    ticks = 0
    with contextlib.suppress(OSError, ValueError), open("/proc/stat", "rb") as file:
        for name, *counts in map(bytes.split, file):
            if name in mine:
                user, nice, system, _idle, _iowait, irq, softirq = map(int, counts[:7])
                ticks += user + nice + system + irq + softirq
    return ticks / os.sysconf("SC_CLK_TCK"), time.process_time()


class Workers(Protocol):
    """The workers of a loader: a ``WorkerGroup``, or what counts the work of a loader without workers."""

    in_process: bool

    def snapshots(self) -> Mapping[int, CounterSnapshot]: ...

    def private_copies(self) -> int: ...


@dataclass(frozen=True)
class _Epochs:
    """The current epoch and those before. Replaced as a whole, as another thread may read it meanwhile."""

    workers: Workers
    times: ConsumerTimer
    number: int = 0  # of the current epoch
    begun: int = 0
    earlier: ConsumerSnapshot = ConsumerSnapshot()
    earlier_workers: Mapping[int, CounterSnapshot] = field(default_factory=dict)  # other than ``workers``
    earlier_copies: int = 0
    workers_before: Mapping[int, CounterSnapshot] = field(default_factory=dict)
    copies_before: int = 0

    def read_consumer(self) -> ConsumerSnapshot:
        return self.times.read() if self.begun else ConsumerSnapshot()

    def read_workers(self) -> dict[int, CounterSnapshot]:
        return added(self.earlier_workers, self.workers.snapshots())

    def read_copies(self) -> int:
        return self.earlier_copies + self.workers.private_copies()


class StatsCollector:
    """Adds up epochs, and tells the current one from those before. Another thread may read it at any time.

    ``in_order`` may change between epochs.
    """

    def __init__(
        self, workers: Workers, count_buffered: Callable[[], int] = int, *, in_order: bool = True
    ) -> None:
        self._count_buffered = count_buffered
        self.in_order = in_order
        self._epochs = _Epochs(workers, ConsumerTimer())
        self._at_start = ConsumerSnapshot()
        self._workers_at_start: Mapping[int, CounterSnapshot] = {}
        self._skipped: Counter[str] = Counter()
        self._skipped_before: Counter[str] = Counter()

    @property
    def times(self) -> ConsumerTimer:
        """The clock of the last epoch."""
        return self._epochs.times

    def begin(self, times: ConsumerTimer, epoch: int | None = None, workers: Workers | None = None) -> None:
        """Begins an epoch with the clock of its iterator. To be called before the workers begin.

        By default, epochs count up, and have the workers of the epoch before.
        """
        last = self._epochs
        last.times.end()
        copies, counted = last.read_copies(), last.read_workers()
        has_others = workers is not None and workers is not last.workers
        self._epochs = _Epochs(
            workers=last.workers if workers is None else workers,
            times=times,
            number=last.begun if epoch is None else epoch,
            begun=last.begun + 1,
            earlier=last.earlier + last.read_consumer(),
            earlier_workers=counted if has_others else last.earlier_workers,
            earlier_copies=copies if has_others else last.earlier_copies,
            workers_before=counted,
            copies_before=copies,
        )
        self._skipped_before = self._skipped.copy()

    def restart(self) -> None:
        """Leaves out of the statistics since the start what the workers and this process did so far."""
        self._at_start = self._epochs.earlier + self.times.read()
        self._workers_at_start = self._epochs.read_workers()

    def watch(self, part: Any, stream: Stream[Any], context: Context) -> Stream[Any]:
        """Counts what the error handler of a stage after the loader leaves out: see ``Context.watch``."""
        if isinstance(stream, ErrorHandlingStream):
            stream.on_skipped = functools.partial(self._count_skipped, stage_name(part))
        return stream

    def _count_skipped(self, stage: str, error: Exception) -> None:
        self._skipped[f"{stage}: {type(error).__name__}"] += 1

    def stats(self, since: Since) -> LoaderStats:
        """Statistics since the epoch began, or since the loader was made."""
        from mpwds.stats.measures import rates_of, worker_stats
        from mpwds.stats.report import LoaderStats

        if since not in ("epoch", "start"):
            raise ValueError(f"stats: since must be 'epoch' or 'start', got {since!r}")
        whole = since == "start"
        epochs = self._epochs
        consumer = epochs.read_consumer()
        consumer = epochs.earlier + consumer - self._at_start if whole else consumer
        before = self._workers_at_start if whole else epochs.workers_before
        workers = [
            worker_stats(index, now - before.get(index, NOTHING_COUNTED))
            for index, now in epochs.read_workers().items()
        ]
        in_process = epochs.workers.in_process
        beside = [worker.cpu_s for worker in workers if not (in_process or worker.server)]
        own_s = consumer.cpu_s + sum(beside)
        spent = ("waited_s", "received_s", "elsewhere_s", "stages_s")
        times = {name: vars(consumer)[name] for name in spent}
        later = rates_of(
            consumer.batches - consumer.first_batches,
            consumer.samples - consumer.first_samples,
            consumer.nbytes - consumer.first_nbytes,
            sum(times.values()),
        )
        totals = {"batches": consumer.batches, "samples": consumer.samples, "nbytes": consumer.nbytes}
        return LoaderStats(
            epoch=epochs.number,
            first_batch_s=consumer.first_batch_s,
            **times,
            **{**later, **totals},
            private_copies=epochs.read_copies() - (0 if whole else epochs.copies_before),
            in_order=self.in_order,
            in_process=in_process,
            cores=len(os.sched_getaffinity(0)),
            workers=tuple(workers) if epochs.begun else (),
            stages_skipped=dict(self._skipped if whole else self._skipped - self._skipped_before),
            epochs=epochs.begun if whole else 1,
            others_cpu_s=max(0.0, consumer.busy_s - own_s),
            buffered=self._count_buffered() if epochs.begun else 0,
        )
