"""A worker's status page: the shard it reads, its counters, and its stack on request."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import time

from mpwds.loader.worker import counters
from mpwds.loader.worker.counters import Counters
from mpwds.sharedmem import segment

_TEXT_NBYTES = segment.PAGE_NBYTES
_NBYTES = _TEXT_NBYTES + -(-counters.NBYTES_OF_ALL // segment.PAGE_NBYTES) * segment.PAGE_NBYTES
_ANSWERS = _TEXT_NBYTES - 1
"""Offset of the byte that is set once the worker handles the signal, which would kill it before."""

STACK_SIGNAL = signal.SIGRTMIN + 7
_STACK_WAIT_S = 0.5
_STAGE = re.compile(r" in stage (.+)")


class StatusPage:
    """A page of text in shared memory, then the worker's counters, then room for a dump of its stacks.

    The worker writes the page and the counters; the trainer reads them, also after the worker's death.
    ``descriptor`` is the page's segment, taken over; without it, a new one is made.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = segment.create(_NBYTES) if descriptor is None else descriptor
        try:
            segment.commit(self.descriptor, 0, _NBYTES)
            self._memory = segment.map(self.descriptor, _NBYTES)
            self.counters = Counters(memoryview(self._memory)[_TEXT_NBYTES:])
        except BaseException:
            os.close(self.descriptor)
            raise

    def write_shard(self, url: str) -> None:
        """Records the shard that is read now."""
        text = url.encode("utf-8", "replace")[: _ANSWERS - 1] + b"\0"
        self._memory[: len(text)] = text

    def shard(self) -> str:
        """The shard that was read last; empty if there was none."""
        text: bytes = self._memory[: self._memory.find(b"\0")]
        return text.decode("utf-8", "replace")

    def answer_stack_requests(self) -> None:
        """Worker: dumps its stacks when :meth:`stack` asks, even while it is stuck in C code."""
        os.lseek(self.descriptor, _NBYTES, os.SEEK_SET)
        faulthandler.register(STACK_SIGNAL, file=self.descriptor, all_threads=True, chain=False)
        self._memory[_ANSWERS] = 1

    def stack(self, pid: int) -> str:
        """Trainer: the stack of the worker's main thread, innermost call first; empty if none comes."""
        if not self._memory[_ANSWERS]:
            return ""
        before = os.fstat(self.descriptor).st_size
        os.kill(pid, STACK_SIGNAL)
        deadline = time.monotonic() + _STACK_WAIT_S
        dump = b""
        while time.monotonic() < deadline:
            time.sleep(0.02)
            longer = os.pread(self.descriptor, 1 << 20, before)
            if longer and longer == dump:
                break
            dump = longer
        threads = dump.decode("utf-8", "replace").split("\n\n")
        return threads[-1].strip()

    def close(self) -> None:
        self.counters.close()
        self._memory.close()
        os.close(self.descriptor)


def stage_in(stack: str) -> str:
    """The innermost pipeline stage in a stack, as it prints (see ``worker.meter``), or an empty string.

    Example:
        >>> stage_in('  File "/x/mpwds/loader/worker/meter.py", line 240 in stage map(crop)')
        'map(crop)'
    """
    found = _STAGE.search(stack)
    return found[1] if found else ""
