"""DataLoader statistics, summed over the epochs' workers or over the work in this process."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

from mpwds.loader.engine.group import WorkerGroup
from mpwds.pipeline.filter import attribute, rows_in
from mpwds.stats.collector import ConsumerTimer, Since, StatsCollector
from mpwds.stats.snapshot import CounterSnapshot, StageSnapshot

if TYPE_CHECKING:
    from mpwds.stats.report import LoaderStats


class EpochStatistics:
    """Adds up the figures of one loader's epochs, up to when the next one begins with other workers."""

    def __init__(self) -> None:
        # The collector refers to this weakly: a cycle would keep workers until the garbage collector runs.
        this = weakref.proxy(self)
        self._statistics = StatsCollector(
            lambda: this._snapshots(), lambda: this._private_copies(), in_order=True, in_process=False
        )
        self._epochs = 0
        self._counting: WorkerGroup | LocalCounts = LocalCounts()
        self._earlier: dict[int, CounterSnapshot] = {}
        self._earlier_copies = 0

    def begin(self, counting: WorkerGroup | LocalCounts, *, in_order: bool) -> ConsumerTimer:
        """Begins an epoch, before its workers do, and returns the clock for its iterator."""
        if counting is not self._counting:
            self._earlier_copies = self._private_copies()
            self._earlier = self._snapshots()
            self._counting = counting
        self._statistics.in_order, self._statistics.in_process = in_order, isinstance(counting, LocalCounts)
        times = ConsumerTimer()
        self._statistics.begin(self._epochs, times)
        self._epochs += 1
        return times

    def stats(self, since: Since) -> LoaderStats:
        return self._statistics.stats(since)

    def _snapshots(self) -> dict[int, CounterSnapshot]:
        found = dict(self._earlier)
        for index, now in self._counting.snapshots().items():
            found[index] = found[index] + now if index in found else now
        return found

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

    def snapshots(self) -> dict[int, CounterSnapshot]:
        work = StageSnapshot(self.active_ns)
        counts = (self.active_ns, 0, self.batches, self.samples, self.nbytes)
        return {0: CounterSnapshot(*counts, other=work, pid=os.getpid())}

    def private_copies(self) -> int:
        return 0


def _array_nbytes(batch: Any) -> int:
    if isinstance(batch, dict):
        return sum(map(_array_nbytes, batch.values()))
    if isinstance(batch, (list, tuple)):
        return sum(map(_array_nbytes, batch))
    nbytes = attribute(batch, "nbytes")
    return nbytes if isinstance(nbytes, int) else 0
