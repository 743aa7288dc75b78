"""Private copies of blocks, for a consumer that keeps more batches than there are blocks."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import weakref
from collections import deque

from mpwds.errors import SharedMemoryError
from mpwds.sharedmem import interrupts
from mpwds.sharedmem.lease import Exporter
from mpwds.sharedmem.pinning import Pinning

_HUGE_PAGE_NBYTES = 2 << 20
_KEPT = 4
_SLACK = 8  # an eighth more than is copied, so that a batch a little larger finds room there later


class PrivateCopies:
    """Copies buffers into memory of this process, reused when the last view of a copy is gone.

    Writing to fresh memory is several times slower than to used memory, because the system finds and clears
    each page at the first touch. So freed buffers are kept for later copies, and large ones use huge pages.

    With ``pinning``, copies are made in pinned memory, which torch itself keeps when it is freed.
    """

    def __init__(self, pinning: Pinning | None = None, kept: int = _KEPT) -> None:
        self._pinning = pinning
        self._free: deque[mmap.mmap] = deque(maxlen=kept)
        self._ends: dict[int, weakref.ref[Exporter]] = {}
        self._number = itertools.count()
        self.made = 0  # copies

    def copy(self, source: memoryview) -> Exporter:
        """A writable buffer or a pinned tensor that starts with the bytes of ``source``, of one dimension."""
        self.made += 1
        copy = self.room(source.nbytes)
        memoryview(copy if isinstance(copy, ctypes.Array) else copy.numpy()).cast("B")[:] = source
        return copy

    def room(self, nbytes: int) -> Exporter:
        """A writable buffer of any content, or a pinned tensor."""
        pinned = None if self._pinning is None else self._pinning.memory(nbytes)
        return self.blank(nbytes) if pinned is None else pinned

    def blank(self, nbytes: int) -> Exporter:
        """A writable buffer of ``nbytes`` bytes of any content."""
        memory = self._memory(nbytes)
        exporter = (ctypes.c_char * nbytes).from_buffer(memory)
        free, ends, number, keep = self._free, self._ends, next(self._number), interrupts.keep

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
