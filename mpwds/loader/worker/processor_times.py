"""Processor time of this process, and how long it had to wait for a processor."""

from __future__ import annotations

import time

_SCHEDULER = "/proc/thread-self/schedstat"


class ProcessorTimes:
    """Adds up processor time over periods: from each :meth:`resume` to the last :meth:`read` before the next.

    Example:
        >>> times = ProcessorTimes()
        >>> times.resume()
        >>> cpu_ns, queued_ns = times.read()
        >>> cpu_ns > 0
        True
    """

    def __init__(self) -> None:
        self._cpu_ns = self._queued_ns = 0
        self.resume()

    def resume(self) -> None:
        """Begins a period: what was between this and the last read is not counted."""
        self._cpu_before_ns = time.process_time_ns()
        self._queued_before_ns = _queued_ns()

    def read(self) -> tuple[int, int]:
        """Nanoseconds of all threads on a processor, and of the calling thread in the queue for one."""
        cpu_ns, queued_ns = time.process_time_ns(), _queued_ns()
        self._cpu_ns += cpu_ns - self._cpu_before_ns
        self._queued_ns += queued_ns - self._queued_before_ns
        self._cpu_before_ns, self._queued_before_ns = cpu_ns, queued_ns
        return self._cpu_ns, self._queued_ns


def _queued_ns() -> int:
    """How long the calling thread has been able to run but did not; 0 where the kernel does not tell."""
    try:
        with open(_SCHEDULER, "rb", buffering=0) as file:
            return int(file.read(100).split()[1])
    except (OSError, ValueError, IndexError):
        return 0
