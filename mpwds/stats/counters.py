"""A worker's status page in shared memory: its counters, the shard it reads, and its stack on request."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import re
import signal
import time

from mpwds.sharedmem import segment
from mpwds.stats.snapshot import CounterSnapshot, StageSnapshot

OTHER, WRITING = range(2)
"""Stages that always exist: the work outside stages, and writing batches into shared memory."""

_FURTHER = b"further ones"  # name of the last entry, which stands for all that do not fit
_CUT = "…".encode()  # at the end of a text that is too long

STACK_SIGNAL = signal.SIGRTMIN + 7
_STACK_WAIT_S = 0.5


class StageCounters(ctypes.Structure):
    """A stage: estimated nanoseconds (see ``stats/profiler.py``), and the elements that came out of it."""

    _fields_ = (
        ("time_ns", ctypes.c_int64),
        ("elements", ctypes.c_int64),
        ("storage", ctypes.c_int64),
        ("nbytes", ctypes.c_int64),
        ("name", ctypes.c_char * 104),
    )

    def read(self) -> StageSnapshot:
        return StageSnapshot(self.time_ns, self.elements, bool(self.storage), self.nbytes)


class _Skipped(ctypes.Structure):
    _fields_ = (("elements", ctypes.c_int64), ("name", ctypes.c_char * 120))


class Counters(ctypes.Structure):
    """The counters of a worker, zeros at first.

    Only the worker writes them, each in one store, so the trainer may read them at any moment.
    ``active_ns`` and ``waiting_ns`` are negative while such a time runs, until ``time.monotonic_ns()``, which
    is one clock for all processes, is added.
    """

    _fields_ = (
        ("active_ns", ctypes.c_int64),  # inside epochs, from start to end
        ("waiting_ns", ctypes.c_int64),  # of these, waiting for the trainer: for a block, or to send
        ("batches", ctypes.c_int64),  # sent; single elements, where the dataset makes no batches
        ("samples", ctypes.c_int64),  # in them
        ("nbytes", ctypes.c_int64),  # of their arrays
        ("cpu_ns", ctypes.c_int64),  # processor time inside epochs, of all threads
        ("queued_ns", ctypes.c_int64),  # of the main thread: it could run, but others had the processors
        ("described", ctypes.c_int64),  # how many of the stages exist
        ("stages", StageCounters * 48),
        ("kinds", _Skipped * 24),  # of error, and the elements that error handlers left out because of each
        ("answers", ctypes.c_int64),  # the worker handles STACK_SIGNAL, which would have killed it before
        ("shard", ctypes.c_char * 4096),  # that was read last
    )

    def describe_stage(self, stage: int, name: str, storage: bool) -> StageCounters:
        """Describes the next stage; returns its counters, or the last entry's if there are too many."""
        last = len(self.stages) - 1
        counters: StageCounters = self.stages[min(stage, last)]
        counters.name = _encoded(name, "name", StageCounters) if stage < last else _FURTHER
        counters.storage = storage
        self.described = min(stage, last) + 1
        return counters

    def count_skipped(self, kind: str) -> None:
        """Counts an element that an error handler left out, by the kind of error."""
        name = _encoded(kind, "name", _Skipped)
        for skipped in self.kinds[:-1]:
            if skipped.name in (name, b""):
                break
        else:
            skipped, name = self.kinds[-1], _FURTHER
        skipped.name = name
        skipped.elements += 1

    def read(self, pid: int = 0) -> CounterSnapshot:
        now_ns = time.monotonic_ns()
        active_ns, waiting_ns = self.active_ns, self.waiting_ns
        named = self.stages[WRITING + 1 : self.described]
        return CounterSnapshot(
            active_ns=active_ns if active_ns >= 0 else active_ns + now_ns,
            waiting_ns=waiting_ns if waiting_ns >= 0 else waiting_ns + now_ns,
            batches=self.batches,
            samples=self.samples,
            nbytes=self.nbytes,
            cpu_ns=self.cpu_ns,
            queued_ns=self.queued_ns,
            other=self.stages[OTHER].read(),
            writing=self.stages[WRITING].read(),
            stages=_told_apart([(_decoded(stage.name), stage.read()) for stage in named]),
            skipped={_decoded(kind.name): kind.elements for kind in self.kinds if kind.elements},
            shard=_decoded(self.shard),
            pid=pid,
        )


class StatusPage:
    """The worker's counters in shared memory, and after them room for a dump of its stacks.

    ``descriptor`` is the page's segment, taken over; without it, a new one is made.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        pages = -(-ctypes.sizeof(Counters) // segment.PAGE_NBYTES)
        self._nbytes = pages * segment.PAGE_NBYTES
        self.descriptor = segment.create(self._nbytes) if descriptor is None else descriptor
        try:
            segment.commit(self.descriptor, 0, self._nbytes)
            self.counters = Counters.from_buffer(segment.map(self.descriptor, self._nbytes))
        except BaseException:
            os.close(self.descriptor)
            raise

    def write_shard(self, url: str) -> None:
        self.counters.shard = _encoded(url, "shard")

    def answer_stack_requests(self) -> None:
        """Worker: dumps its stacks when :meth:`stack` asks, even while it is stuck in C code."""
        os.lseek(self.descriptor, self._nbytes, os.SEEK_SET)
        faulthandler.register(STACK_SIGNAL, file=self.descriptor, all_threads=True, chain=False)
        self.counters.answers = 1

    def stack(self, pid: int) -> str:
        """Trainer: the stack of the worker's main thread, innermost call first; empty if none comes."""
        if not self.counters.answers:
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
        del self.counters  # the mapping ends with the last reference: another thread may be reading them
        os.close(self.descriptor)


def stage_in(stack: str) -> str:
    """The innermost pipeline stage in a stack, named as ``stats/profiler.py`` does it, or an empty string."""
    found = re.search(r" in stage (.+)", stack)
    return found[1] if found else ""


def _encoded(text: str, field: str, of: type[ctypes.Structure] = Counters) -> bytes:
    data, size = text.encode("utf-8", "replace"), vars(of)[field].size
    return data if len(data) <= size else data[: size - len(_CUT)] + _CUT


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "ignore")


def _told_apart(stages: list[tuple[str, StageSnapshot]]) -> dict[str, StageSnapshot]:
    """The stages by name; the second of two that print alike is called ``map(crop) #2``."""
    named: dict[str, StageSnapshot] = {}
    for name, reading in stages:
        unique, number = name, 2
        while unique in named:
            unique, number = f"{name} #{number}", number + 1
        named[unique] = reading
    return named
