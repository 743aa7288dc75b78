"""DataLoader statistics, summed over the epochs' workers or over the work in this process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

from mpwds.loader.stats.collector import Ledger, Since, WorkerReading
from mpwds.loader.stats.trainer_times import TrainerTimes
from mpwds.loader.worker.counters import Reading, StageReading
from mpwds.pipeline.filter import attribute, rows_in

if TYPE_CHECKING:
    from mpwds.loader.stats.stats import LoaderStats


class Counting(Protocol):
    """What does the work of one epoch or several, and counts it: a group of workers, or this process."""

    def readings(self) -> list[WorkerReading]:
        """What each worker has counted since this was made."""

    def private_copies(self) -> int:
        """Batches that were copied out of shared memory."""


class EpochStatistics:
    """Adds up what is counted in the epochs of one loader, numbered from 0 as they begin.

    What an epoch still counts after the next one has begun with other workers is left out.
    """

    def __init__(self) -> None:
        self._sums = _Sums()
        self._ledger = Ledger(self._sums.readings, self._sums.private_copies, in_order=True, in_process=False)
        self._epochs = 0

    def begin(self, counting: Counting, *, in_order: bool, in_process: bool) -> TrainerTimes:
        """Begins an epoch, before its workers do, and returns the clock for its iterator.

        Args:
            counting: What does the work.
            in_order: Whether workers take turns.
            in_process: Whether there are no worker processes.
        """
        self._sums.count_by(counting)
        self._ledger.in_order, self._ledger.in_process = in_order, in_process
        times = TrainerTimes()
        self._ledger.begin(self._epochs, times)
        self._epochs += 1
        return times

    def stats(self, since: Since) -> LoaderStats:
        return self._ledger.stats(since)


class _Sums:
    """The sums over everything that has counted so far.

    The ledger of ``EpochStatistics`` refers to these, not to ``EpochStatistics``: the two would form a
    reference cycle, which would keep the workers' processes until the garbage collector runs.
    """

    def __init__(self) -> None:
        self._counting: Counting | None = None
        self._earlier: dict[int, WorkerReading] = {}
        self._earlier_copies = 0

    def count_by(self, counting: Counting) -> None:
        if counting is not self._counting:
            self._earlier_copies = self.private_copies()
            self._earlier = {reading.index: reading for reading in self.readings()}
            self._counting = counting

    def readings(self) -> list[WorkerReading]:
        readings = dict(self._earlier)
        for now in self._counting.readings() if self._counting is not None else ():
            if (before := self._earlier.get(now.index)) is not None:
                now = WorkerReading(now.index, now.pid, before.reading + now.reading)
            readings[now.index] = now
        return [readings[index] for index in sorted(readings)]

    def private_copies(self) -> int:
        return self._earlier_copies + (0 if self._counting is None else self._counting.private_copies())


class LocalCounts:
    """Counts the work without workers, as one stage: the dataset with its collation."""

    def __init__(self) -> None:
        self.active_ns = self.batches = self.samples = self.nbytes = 0

    def count(self, batch: Any) -> tuple[int, int]:
        """Counts a batch; returns its number of samples and the bytes of its arrays."""
        samples, nbytes = rows_in(batch), _array_nbytes(batch)
        self.batches += 1
        self.samples += samples
        self.nbytes += nbytes
        return samples, nbytes

    def readings(self) -> list[WorkerReading]:
        reading = Reading(
            active_ns=self.active_ns,
            batches=self.batches,
            samples=self.samples,
            nbytes=self.nbytes,
            other=StageReading(self.active_ns),
        )
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
