"""DataLoader statistics, summed over the epochs' workers or over the work in this process."""

from __future__ import annotations

import os
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpwds.loader.engine.group import WorkerGroup
from mpwds.loader.stats.collector import Since, StatsCollector
from mpwds.loader.stats.trainer_times import TrainerTimes
from mpwds.loader.worker.counters import Reading, StageReading, WorkerReading
from mpwds.pipeline.filter import attribute, rows_in

if TYPE_CHECKING:
    from mpwds.loader.stats.stats import LoaderStats


class EpochStatistics:
    """Adds up the figures of one loader's epochs, up to when the next one begins with other workers."""

    def __init__(self) -> None:
        # The collector refers to this weakly: a cycle would keep workers until the garbage collector runs.
        this = weakref.proxy(self)
        self._statistics = StatsCollector(
            lambda: this._readings(), lambda: this._private_copies(), in_order=True, in_process=False
        )
        self._epochs = 0
        self._counting: WorkerGroup | LocalCounts = LocalCounts()
        self._earlier: dict[int, WorkerReading] = {}
        self._earlier_copies = 0

    def begin(self, counting: WorkerGroup | LocalCounts, *, in_order: bool) -> TrainerTimes:
        """Begins an epoch, before its workers do, and returns the clock for its iterator."""
        if counting is not self._counting:
            self._earlier_copies = self._private_copies()
            self._earlier = {reading.index: reading for reading in self._readings()}
            self._counting = counting
        self._statistics.in_order, self._statistics.in_process = in_order, isinstance(counting, LocalCounts)
        times = TrainerTimes()
        self._statistics.begin(self._epochs, times)
        self._epochs += 1
        return times

    def stats(self, since: Since) -> LoaderStats:
        return self._statistics.stats(since)

    def _readings(self) -> list[WorkerReading]:
        readings = dict(self._earlier)
        for now in self._counting.readings():
            if (before := self._earlier.get(now.index)) is not None:
                now = replace(now, reading=before.reading + now.reading)
            readings[now.index] = now
        return [readings[index] for index in sorted(readings)]

    def _private_copies(self) -> int:
        return self._earlier_copies + self._counting.private_copies()


class LocalCounts:
    """Counts the work without workers, as one stage: the dataset with its collation."""

    def __init__(self) -> None:
        self.active_ns = self.batches = self.samples = self.nbytes = 0

    def count(self, batch: Any) -> tuple[int, int]:
        """Counts a batch, and returns its samples and the bytes of its arrays."""
        samples, nbytes = rows_in(batch), _array_nbytes(batch)
        self.batches += 1
        self.samples += samples
        self.nbytes += nbytes
        return samples, nbytes

    def readings(self) -> list[WorkerReading]:
        other = StageReading(self.active_ns)
        reading = Reading(self.active_ns, 0, self.batches, self.samples, self.nbytes, other=other)
        return [WorkerReading(0, os.getpid(), reading)]

    def private_copies(self) -> int:
        return 0


def _array_nbytes(batch: Any) -> int:
    if isinstance(batch, dict):
        return sum(map(_array_nbytes, batch.values()))
    if isinstance(batch, (list, tuple)):
        return sum(map(_array_nbytes, batch))
    nbytes = attribute(batch, "nbytes")
    return nbytes if isinstance(nbytes, int) else 0
