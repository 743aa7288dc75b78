"""Pinned memory: shared memory registered with CUDA, and memory from torch's own allocator."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import mmap
import os
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

from mpwds.errors import SharedMemoryError
from mpwds.sharedmem import interrupts, segment
from mpwds.sharedmem.cuda import Fence, PinningRefused, Runtime
from mpwds.warn import warn

PATIENCE_S = 0.2  # the end of a mapping waits so long for devices that read it; if they still do, it is kept
_STEP_S = 0.001


class PinnedMapping(mmap.mmap):
    """A mapping that is registered with CUDA until nothing refers to it any more.

    It must be unregistered before it is unmapped, and not while a device reads it. ``mmap`` unmaps before it
    calls weak references back, so ``__del__`` unregisters; every view of the mapping delays it. Mappings that
    the interpreter does not collect are unregistered at exit. A fork of this process, which does not use
    CUDA, does nothing.
    """

    cuda: Runtime | None = None  # that it is registered with
    _has_last_fence = False

    def pin(self, cuda: Runtime, fences: list[Fence | None]) -> None:
        """Registers the mapping, whose pages must have their memory, or raises :class:`PinningRefused`.

        Its end waits for the fences that are then in ``fences``, the caller's list.
        """
        self._fences = fences
        self._owner = os.getpid()
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self))
        # Bound here, because the end may come after modules are gone.
        self._finalizing = sys.is_finalizing
        cuda.register(self._address, len(self))
        self.cuda = cuda
        _pinned.add(self)

    def unpin(self, patience_s: float = 0.0) -> bool:
        """Unregisters it unless devices still read it after ``patience_s``; returns whether it has."""
        cuda = self.cuda
        if cuda is None:
            return True
        if os.getpid() != self._owner:
            return False
        deadline = time.monotonic() + patience_s
        while not self._unread(cuda):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_STEP_S)
        self.cuda = None
        cuda.unregister(self._address)
        return True

    def _unread(self, cuda: Runtime) -> bool:
        # A last fence: the code that dropped the mapping may have begun a copy just before.
        if not self._has_last_fence:
            last = cuda.fence()
            if last is None:
                return False
            self._fences = [*self._fences, last]
            self._has_last_fence = True
        return all(fence is None or fence.done() for fence in self._fences)

    def __del__(self) -> None:
        if self.cuda is None or self._finalizing() or os.getpid() != self._owner:
            return
        try:
            if not self.unpin(PATIENCE_S):
                _still_read.append(self)
        except KeyboardInterrupt as interrupt:
            _still_read.append(self)
            interrupts.keep(interrupt)
        except RuntimeError:
            # The device has failed; the program's next CUDA call raises the error.
            _still_read.append(self)


_pinned: weakref.WeakSet[PinnedMapping] = weakref.WeakSet()
_still_read: list[PinnedMapping] = []


def _unpin_late() -> None:
    for mapping in tuple(_still_read):
        if mapping.unpin():
            with contextlib.suppress(ValueError):  # another thread was faster
                _still_read.remove(mapping)


@atexit.register
def _unpin_all() -> None:
    for mapping in (*_pinned, *_still_read):
        with contextlib.suppress(RuntimeError):  # of a device that has failed
            mapping.unpin(PATIENCE_S)


class Pinning:
    """Pinned memory for the batches of one loader; without CUDA, or if CUDA refuses, it warns once.

    ``find_cuda`` is called when memory is first needed. ``without`` is, for the warning, the consequence if
    the workers' shared memory cannot be pinned.
    """

    def __init__(
        self,
        find_cuda: Callable[[], Runtime | None],
        without: str = "batches are delivered unpinned, and copying them to a device makes the program wait",
    ) -> None:
        self._find_cuda = find_cuda
        self._without = without
        self._looked = False
        self._cuda: Runtime | None = None
        self._refused: set[str] = set()

    @property
    def cuda(self) -> Runtime | None:
        if not self._looked:
            self._cuda = self._find_cuda()
            self._looked = True
            if self._cuda is None:
                warn("pin_memory=True has no effect: torch finds no CUDA device")
        return self._cuda

    def map(
        self, descriptor: int, nbytes: int, fences: list[Fence | None]
    ) -> tuple[mmap.mmap, Runtime | None]:
        """A segment's memory, pinned if possible, and the runtime that it is registered with, if any.

        Pinning gives all of it its memory now. The caller puts the fences of released blocks in ``fences``.
        """
        _unpin_late()
        mapping = segment.map_as(PinnedMapping, descriptor, nbytes)
        cuda = self.cuda
        if cuda is not None and "segment" not in self._refused:
            try:
                segment.commit(descriptor, 0, nbytes)
                mapping.pin(cuda, fences)
            except (PinningRefused, SharedMemoryError) as error:
                self._refuse("segment", f"{nbytes / 1e6:,.1f} MB of a worker's shared memory", error)
        return mapping, mapping.cuda

    def memory(self, nbytes: int) -> Any:
        """Pinned memory as a tensor of bytes; ``None`` if it is not available."""
        cuda = self.cuda
        if cuda is None or "memory" in self._refused:
            return None
        try:
            return cuda.pinned(nbytes)
        except PinningRefused as error:
            self._refuse("memory", f"{nbytes / 1e6:,.1f} MB", error)
            return None

    def copy(self, source: memoryview) -> Any:
        """A copy of some bytes in pinned memory, as a tensor; ``None`` if it is not available."""
        memory = self.memory(source.nbytes)
        if memory is not None:
            memory.numpy()[:] = source
        return memory

    def _refuse(self, which: str, what: str, error: Exception) -> None:
        self._refused.add(which)
        warn(
            f"{what} could not be pinned ({error}): {self._without}. See the limit on locked memory "
            "(ulimit -l), or use fewer workers, a lower prefetch or smaller batches"
        )
