"""Deals the streams of an epoch to the workers that are there, by the time that each needs for a batch.

Streams are dealt again when a worker is lost or comes, and when the trainer waits for a slow one. The order
of batches does not depend on who makes them. A worker whose streams change begins all of its streams again,
from their last states. That costs it up to a second of work, so it is done only if the epoch gains by it.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Mapping

from mpwds.stats.snapshot import NOTHING_COUNTED, CounterSnapshot

_LOOK_EVERY_S, _LOOK_AT_LEAST_S = 2.0, 60.0
"""The time between two looks at the workers' speed. It doubles each time that streams are dealt again."""

_WAITS = 0.1
"""A trainer that waits for less of its time gains nothing."""

_SHORTER = 0.8
"""Of the time of a round, which the slowest worker needs: a new one must not be longer."""

_FORGETS = 0.9
"""A worker without streams counts as a little faster with each look, so that it is tried again."""


def deal(carriers: Mapping[int, int], seconds: Mapping[int, float]) -> dict[int, int]:
    """Deals streams so that a round takes the slowest worker the least time; moves as few as it can.

    Args:
        carriers: The worker that each stream has now.
        seconds: What each worker needs for a batch. Workers that are not among them are gone.

    Example:
        >>> deal({0: 0, 1: 1, 2: 0, 3: 1}, {0: 0.03, 1: 0.01})
        {0: 0, 1: 1, 2: 1, 3: 1}
    """
    counts = dict.fromkeys(seconds, 0)
    ends = [(each, worker) for worker, each in seconds.items()]  # of a round with one stream more
    heapq.heapify(ends)
    for _ in carriers:
        _, worker = ends[0]
        counts[worker] += 1
        heapq.heapreplace(ends, ((counts[worker] + 1) * seconds[worker], worker))
    kept = {}
    for stream, worker in carriers.items():
        if counts.get(worker, 0):
            counts[worker] -= 1
            kept[stream] = worker
    room = iter([worker for worker, count in counts.items() for _ in range(count)])
    return {stream: kept[stream] if stream in kept else next(room) for stream in carriers}


class StreamDealer:
    """Measures the seconds that each worker needs for a batch, by its counters and by the trainer's waiting.

    The larger counts: a worker's own time leaves out a slow network, the waiting a worker that is ahead.
    """

    def __init__(self, snapshots: Callable[[], Mapping[int, CounterSnapshot]]) -> None:
        self._snapshots = snapshots
        self._seconds: dict[int, float] = {}
        self._waited: Counter[int] = Counter()  # nanoseconds, by the worker that was waited for
        self._since = time.monotonic()
        self._every_s = _LOOK_EVERY_S
        self._before: Mapping[int, CounterSnapshot] = {}

    def waited(self, worker: int, nanoseconds: int) -> None:
        self._waited[worker] += nanoseconds

    def look(self) -> bool:
        """Measures, if it is time to; true if the trainer has waited for so long that dealing may help."""
        now = time.monotonic()
        elapsed_s = now - self._since
        if elapsed_s < self._every_s:
            return False
        before, self._before, self._since = self._before, self._snapshots(), now
        for worker, counted in self._before.items():
            made = counted - before.get(worker, NOTHING_COUNTED)
            is_first = worker not in self._seconds  # a worker may make all its batches before the first look
            if made.batches > 0 and (is_first or worker in before):
                worked_ns = made.active_ns - made.waiting_ns
                self._seconds[worker] = max(worked_ns, self._waited[worker]) / made.batches / 1e9
            elif worker in before and not is_first:
                self._seconds[worker] *= _FORGETS
        waited_s = sum(self._waited.values()) / 1e9
        self._waited.clear()
        return bool(before) and waited_s > _WAITS * elapsed_s

    def deal(self, carriers: dict[int, int], workers: list[int], must: bool) -> dict[int, int]:
        """Deals streams to the ``workers`` that are there, if it must, or if rounds become so much shorter
        that it is worth what workers repeat. Otherwise returns the ``carriers`` as they are."""
        known = [self._seconds[worker] for worker in workers if worker in self._seconds]
        average = sum(known) / len(known) if known else 1.0
        seconds = {worker: self._seconds.get(worker, average) for worker in workers}
        if not seconds or not (must or seconds.keys() >= set(carriers.values())):
            return carriers
        dealt = deal(carriers, seconds)
        if not (must or _round_s(dealt, seconds) < _SHORTER * _round_s(carriers, seconds)):
            return carriers
        # What workers repeat now tells nothing of their speed.
        self._before, self._every_s = {}, min(2 * self._every_s, _LOOK_AT_LEAST_S)
        return dealt


def _round_s(carriers: Mapping[int, int], seconds: Mapping[int, float]) -> float:
    return max(count * seconds[worker] for worker, count in Counter(carriers.values()).items())
