"""What a DataLoader's epochs come to, though each may have workers of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mpwds.loader.stats.collector import Ledger, Since, WorkerReading
from mpwds.loader.stats.trainer_times import TrainerTimes

if TYPE_CHECKING:
    from mpwds.loader.stats.stats import LoaderStats


class Counting(Protocol):
    """What does the work of an epoch, or of several, and counts it: a group of workers, or this process."""

    def readings(self) -> list[WorkerReading]:
        """What each worker has counted since this was made."""

    def private_copies(self) -> int:
        """Batches that were copied out of shared memory."""


class Accounts:
    """Adds up what is counted in the epochs of one loader.

    Epochs are numbered as they begin, from 0. What an epoch still counts when the next has begun with other
    workers is left out.
    """

    def __init__(self) -> None:
        self._sums = _Sums()
        self._ledger = Ledger(self._sums.readings, self._sums.private_copies, in_order=True, in_process=False)
        self._epochs = 0

    def begin(self, counting: Counting, *, in_order: bool, in_process: bool) -> TrainerTimes:
        """Begins an epoch; to be called before workers do.

        Args:
            counting: Who does the work.
            in_order: Whether workers take turns.
            in_process: Whether there are no worker processes.

        Returns:
            The clock for the epoch's iterator.
        """
        self._sums.go_on_with(counting)
        self._ledger.in_order, self._ledger.in_process = in_order, in_process
        times = TrainerTimes()
        self._ledger.begin(self._epochs, times)
        self._epochs += 1
        return times

    def stats(self, since: Since) -> LoaderStats:
        """What was counted since the last epoch began, or since the loader was made.

        Raises:
            ValueError: ``since`` is neither ``"epoch"`` nor ``"start"``.
        """
        return self._ledger.stats(since)


class _Sums:
    """What those who counted one after the other come to.

    Apart from ``Accounts``, whose ledger asks for it: the two would keep each other, and with them the
    workers' processes, until the garbage collector comes by.
    """

    def __init__(self) -> None:
        self._counting: Counting | None = None
        self._earlier: dict[int, WorkerReading] = {}
        self._earlier_copies = 0

    def go_on_with(self, counting: Counting) -> None:
        """From now on ``counting`` counts."""
        if counting is not self._counting:
            self._earlier_copies = self.private_copies()
            self._earlier = {reading.index: reading for reading in self.readings()}
            self._counting = counting

    def readings(self) -> list[WorkerReading]:
        """What each worker has counted."""
        readings = dict(self._earlier)
        for now in self._counting.readings() if self._counting is not None else ():
            if (before := self._earlier.get(now.index)) is not None:
                now = WorkerReading(now.index, now.pid, before.reading + now.reading)
            readings[now.index] = now
        return [readings[index] for index in sorted(readings)]

    def private_copies(self) -> int:
        """Batches that were copied out of shared memory."""
        return self._earlier_copies + (0 if self._counting is None else self._counting.private_copies())
