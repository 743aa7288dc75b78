"""The consumer's side of shared memory: blocks are leased, and handed back when their last view is gone.

A consumer that keeps more batches than there are blocks gets private copies of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from mpwds import interrupts
from mpwds.errors import SharedMemoryError
from mpwds.sharedmem import segment
from mpwds.sharedmem.arena import EventFd, Layout

if TYPE_CHECKING:
    from mpwds.sharedmem.cuda import Fence, Pinning, Runtime

Exporter = Any
"""A ctypes array: the object that every view of a block refers to, directly or through other views."""


class LeasedArena:
    """A producer's segment, mapped here to lease its blocks; the caller closes ``descriptor``.

    When the last view of a block is gone, in any thread and also inside garbage collection, the block goes
    back to the producer, whose ``bell`` is rung. A fork of this process inherits the views but not the
    leases: dropping them there changes nothing.

    A device may still copy from pinned memory then. So a fence is made, and :meth:`reclaim` hands the block
    back once the device has passed it.
    """

    def __init__(
        self, layout: Layout, descriptor: int, bell: EventFd, pinning: Pinning | None = None
    ) -> None:
        self._layout = layout
        self._fences: list[Fence | None] = [None] * layout.blocks
        self._cuda: Runtime | None = None
        if pinning is None:
            self._mapping = segment.map(descriptor, layout.nbytes)
        else:
            self._mapping, self._cuda = pinning.map(descriptor, layout.nbytes, self._fences)
        self._taken, self._released = layout.counters(memoryview(self._mapping))
        self._bell = bell
        self._owner = os.getpid()
        self._block_type = ctypes.c_char * layout.block_nbytes
        self._leases: list[_Lease | None] = [None] * layout.blocks

    @property
    def leased(self) -> int:
        """Number of blocks that views still hold."""
        return sum(lease is not None and lease.exporter() is not None for lease in self._leases)

    @property
    def pending_device_reads(self) -> bool:
        """True if there are blocks that no view holds any more but that are not handed back yet."""
        return any(
            lease is not None and lease.exporter() is None and self._released[block] < lease.taken
            for block, lease in enumerate(self._leases)
        )

    def lease(self, block: int) -> Exporter:
        """Block ``block`` as a writable buffer, leased until nothing refers to it or to a view of it."""
        # The finalizer belongs on the object that exports the buffer: NumPy collapses chains of
        # views, so an array made from another outlives it, but none outlives the exporter.
        exporter = self._block_type.from_buffer(self._mapping, self._layout.offset(block))
        count = self._taken[block]
        self._fences[block] = None
        self._leases[block] = _Lease(weakref.ref(exporter, self._finalizer(block, count)), count)
        return exporter

    def reclaim(self) -> None:
        """Hands back blocks that a device has read by now, and those whose finalizer was interrupted.

        A signal handler may raise an exception, usually KeyboardInterrupt, inside a finalizer, where Python
        swallows it. Call this before waiting for the producer.
        """
        for block, lease in enumerate(self._leases):
            if lease is not None and lease.exporter() is None:
                if self._released[block] < lease.taken:
                    if not self._read_by_devices(block):
                        continue
                    self._released[block] = lease.taken
                    self._bell.ring()
                self._leases[block] = None

    def release_finished(self) -> None:
        """Waits until the devices have read a block that :meth:`reclaim` can then hand back."""
        for lease, fence in zip(self._leases, self._fences, strict=True):
            if lease is not None and lease.exporter() is None and fence is not None:
                fence.wait()
                return

    def peek(self, block: int) -> memoryview:
        """A block's memory without a lease, for a copy; :meth:`discard` the block afterwards."""
        start = self._layout.offset(block)
        return memoryview(self._mapping)[start : start + self._layout.block_nbytes]

    def discard(self, block: int) -> None:
        """Hands back a block that was never leased."""
        self._released[block] = self._taken[block]
        self._bell.ring()

    def _read_by_devices(self, block: int) -> bool:
        if self._cuda is None:
            return True
        fence = self._fences[block]
        if fence is None:
            # Its finalizer was interrupted, or runs in another thread now: look at the fence next time.
            self._fences[block] = self._cuda.fence()
            return False
        return fence.done()

    def _finalizer(self, block: int, count: int) -> Callable[[object], None]:
        # A finalizer runs in any thread, between any two instructions, and at interpreter exit: it must not
        # take a lock, use a socket or look up a name in a module that may be gone.
        released, fences, bell, cuda = self._released, self._fences, self._bell, self._cuda
        owner, current_process, finalizing = self._owner, os.getpid, sys.is_finalizing
        keep = interrupts.defer

        def hand_back(_: object) -> None:
            try:
                if current_process() != owner or finalizing() or released[block] >= count:
                    return
                if cuda is not None:
                    fence = cuda.fence()
                    if fence is None or not fence.done():
                        fences[block] = fence
                        return
                if released[block] < count:
                    released[block] = count
                    bell.ring()
            except KeyboardInterrupt as interrupt:
                keep(interrupt)
            except RuntimeError:
                pass  # a device has failed; the next look at the block raises it outside a finalizer

        return hand_back


class _Lease(NamedTuple):
    exporter: weakref.ref[Exporter]
    taken: int


_HUGE_PAGE_NBYTES = 2 << 20
_KEPT = 4
_SLACK = 8  # an eighth more than is copied, so that a batch a little larger finds room there later


class CopiedBatches:
    """Copies buffers into memory of this process, reused when the last view of a copy is gone.

    The system finds and clears each page of fresh memory at its first use, which takes several times as long
    as writing. So freed buffers are kept for later copies, and large ones use huge pages.

    With ``pinning``, copies are made in pinned memory, which torch itself keeps when it is freed.
    """

    def __init__(self, pinning: Pinning | None = None, kept: int = _KEPT) -> None:
        self.pinning = pinning
        self._free: deque[mmap.mmap] = deque(maxlen=kept)
        self._ends: dict[int, weakref.ref[Exporter]] = {}
        self._number = itertools.count()
        self.made = 0  # copies

    def copy(self, source: memoryview) -> Exporter:
        """A writable buffer or a pinned tensor that starts with the bytes of ``source``, of one dimension."""
        self.made += 1
        copy = self.allocate(source.nbytes)
        memoryview(copy if isinstance(copy, ctypes.Array) else copy.numpy()).cast("B")[:] = source
        return copy

    def allocate(self, nbytes: int) -> Exporter:
        """A writable buffer of any content, or a pinned tensor."""
        pinned = None if self.pinning is None else self.pinning.memory(nbytes)
        return self.allocate_pageable(nbytes) if pinned is None else pinned

    def allocate_pageable(self, nbytes: int) -> Exporter:
        """A writable buffer of ``nbytes`` bytes of any content."""
        memory = self._memory(nbytes)
        exporter = (ctypes.c_char * nbytes).from_buffer(memory)
        free, ends, number, keep = self._free, self._ends, next(self._number), interrupts.defer

        def keep_for_later(_: object) -> None:
            # Runs in any thread, also inside garbage collection: single operations that need no lock.
            try:
                ends.pop(number, None)
                free.append(memory)
            except KeyboardInterrupt as interrupt:
                keep(interrupt)

        ends[number] = weakref.ref(exporter, keep_for_later)
        return exporter

    def _memory(self, nbytes: int) -> mmap.mmap:
        with contextlib.suppress(IndexError):
            memory = self._free.pop()
            if len(memory) >= nbytes:
                return memory
        is_large = nbytes >= _HUGE_PAGE_NBYTES
        size = -(-nbytes // _HUGE_PAGE_NBYTES) * _HUGE_PAGE_NBYTES if is_large else nbytes + nbytes // _SLACK
        try:
            memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise SharedMemoryError(
                f"no memory for a private copy of {nbytes / 1e6:,.1f} MB ({error.strerror}): "
                "keep fewer batches, or copy what you keep"
            ) from error
        if is_large:  # a huge page takes all of its memory, even if little of it is used
            used = round(nbytes / _HUGE_PAGE_NBYTES) * _HUGE_PAGE_NBYTES
            with contextlib.suppress(OSError, AttributeError):
                memory.madvise(mmap.MADV_HUGEPAGE, 0, used)
        return memory
