"""The trainer's clock: how long it waits, receives, runs stages behind the loader, and does all else."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import astuple, dataclass

_WAITED, _RECEIVED, _ELSEWHERE, _STAGES = range(4)


@dataclass(frozen=True)
class TrainerReading:
    """Figures of one or more epochs; readings can be added.

    ``first_ns`` is the time to an epoch's first batch, where the other times begin. ``batches``, ``samples``
    and ``nbytes`` include first batches, which also count by themselves, as rates leave them out. Since the
    first batch, all programs together took ``busy_ns`` of the processors' time, this process ``cpu_ns``.
    """

    first_ns: int = 0
    waited_ns: int = 0
    received_ns: int = 0
    elsewhere_ns: int = 0
    stages_ns: int = 0
    batches: int = 0
    samples: int = 0
    nbytes: int = 0
    first_batches: int = 0
    first_samples: int = 0
    first_nbytes: int = 0
    busy_ns: int = 0
    cpu_ns: int = 0

    def __add__(self, more: TrainerReading) -> TrainerReading:
        return TrainerReading(*map(sum, zip(astuple(self), astuple(more), strict=True)))


class TrainerTimes:
    """The clock of an epoch's iterator. Another thread may read it at any time."""

    def __init__(self) -> None:
        self._began_ns = self._since_ns = time.monotonic_ns()
        self._spent_ns = [0, 0, 0, 0]
        self._stages_before_ns = self._untimed_stages_ns = 0
        self._doing = self._outside = _ELSEWHERE
        self._first = (0, 0, 0)
        self._used_first = self._used_last = (0, 0)
        self._batches = self._samples = self._nbytes = 0
        self._running = True

    def asked(self) -> None:
        """``next()`` begins."""
        self._now(_WAITED)

    def arrived(self) -> None:
        """The data of a batch is here."""
        self._now(_RECEIVED)

    def delivered(self, samples: int, nbytes: int) -> None:
        """``next()`` returns a batch."""
        self._now(self._outside)
        self._samples += samples
        self._nbytes += nbytes
        if self._batches == 0:
            self._first = self._since_ns - self._began_ns, samples, nbytes
            self._spent_ns = [0, 0, 0, 0]
            self._untimed_stages_ns = 0
            self._used_first = _used_ns()
        self._batches += 1

    def left(self) -> None:
        """``next()`` ends without a batch."""
        self._now(self._outside)

    def stages_began(self) -> None:
        """The stages behind the loader begin to make an element, and may ask for batches."""
        self._stages_before_ns = self._spent_ns[_STAGES]
        self._outside = _STAGES
        self._now(_STAGES)

    def stages_ended(self, weight: float) -> None:
        """The stages have made an element, which stands for ``weight`` elements, or have ended."""
        self._outside = _ELSEWHERE
        self._now(_ELSEWHERE)
        timed_ns = max(0, self._spent_ns[_STAGES] - self._stages_before_ns)
        self._untimed_stages_ns += round(timed_ns * (weight - 1))

    def end(self) -> None:
        """The epoch is over: the clock stops."""
        self._now(_ELSEWHERE)
        if self._running and self._batches and not sys.is_finalizing():  # then there is no open()
            self._used_last = _used_ns()
        self._running = False

    def read(self) -> TrainerReading:
        spent_ns = list(self._spent_ns)
        untimed_ns = min(self._untimed_stages_ns, spent_ns[_ELSEWHERE])
        if self._running:
            spent_ns[self._doing] += time.monotonic_ns() - self._since_ns
        if not self._batches:  # all the time so far went into the first batch
            return TrainerReading(first_ns=sum(spent_ns))
        first_ns, first_samples, first_nbytes = self._first
        busy_ns, cpu_ns = _used_ns() if self._running else self._used_last
        return TrainerReading(
            first_ns=first_ns,
            waited_ns=spent_ns[_WAITED],
            received_ns=spent_ns[_RECEIVED],
            elsewhere_ns=spent_ns[_ELSEWHERE] - untimed_ns,
            stages_ns=spent_ns[_STAGES] + untimed_ns,
            batches=self._batches,
            samples=self._samples,
            nbytes=self._nbytes,
            first_batches=1,
            first_samples=first_samples,
            first_nbytes=first_nbytes,
            busy_ns=busy_ns - self._used_first[0],
            cpu_ns=cpu_ns - self._used_first[1],
        )

    def _now(self, doing: int) -> None:
        if not self._running:
            return
        now_ns = time.monotonic_ns()
        self._spent_ns[self._doing] += now_ns - self._since_ns
        self._since_ns, self._doing = now_ns, doing


def _used_ns() -> tuple[int, int]:
    """The time that programs have used of this process' processors, and that of this process alone."""
    mine = {b"cpu%d" % number for number in os.sched_getaffinity(0)}
    ticks = 0
    with contextlib.suppress(OSError, ValueError), open("/proc/stat", "rb") as file:
        for name, *counts in map(bytes.split, file):
            if name in mine:
                user, nice, system, _idle, _iowait, irq, softirq = map(int, counts[:7])
                ticks += user + nice + system + irq + softirq
    return ticks * 10**9 // os.sysconf("SC_CLK_TCK"), time.process_time_ns()
