"""The consumer's side of shared memory: blocks leased out, and handed back when no view is left."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from mpwds.sharedmem import interrupts, segment
from mpwds.sharedmem.arena import Layout
from mpwds.sharedmem.bell import Bell

Exporter = Any
"""A ctypes array: the object that every view of a block holds on to, directly or through other views."""


class LeasedArena:
    """A producer's segment, mapped here to lease its blocks.

    A lease ends when the last view of its block is gone, whichever thread drops it and also inside
    garbage collection; the block goes back to the producer at that moment. A process forked from this
    one inherits the views but not the leases: dropping them there changes nothing.

    Args:
        layout: The segment's layout, as the producer announced it.
        descriptor: The segment; the caller closes it after this returns.
        bell: Rung after each block that is handed back.

    Raises:
        SharedMemoryError: The segment cannot be mapped.
    """

    def __init__(self, layout: Layout, descriptor: int, bell: Bell) -> None:
        self._layout = layout
        self._mapping = segment.map(descriptor, layout.nbytes)
        self._taken, self._released = layout.counters(memoryview(self._mapping))
        self._bell = bell
        self._owner = os.getpid()
        self._block_type = ctypes.c_char * layout.block_nbytes
        self._leases: list[_Lease | None] = [None] * layout.blocks

    @property
    def leased(self) -> int:
        """Number of blocks that views still hold."""
        return sum(lease is not None and lease.exporter() is not None for lease in self._leases)

    def lease(self, block: int) -> Exporter:
        """Block ``block`` as a writable buffer, leased until nothing refers to it or to a view of it.

        Make views of it with ``numpy.frombuffer`` or ``torch.frombuffer``; ``memoryview`` does too.
        """
        # The finalizer belongs on the object that exports the buffer: NumPy collapses chains of
        # views, so an array made from another outlives it, but none outlives the exporter.
        exporter = self._block_type.from_buffer(self._mapping, self._layout.offset(block))
        count = self._taken[block]
        self._leases[block] = _Lease(weakref.ref(exporter, self._returner(block, count)), count)
        return exporter

    def reclaim(self) -> None:
        """Hands back blocks whose finalizer was cut short.

        An exception that a signal handler raises, KeyboardInterrupt as a rule, may come inside a finalizer,
        where Python swallows it. Call this before waiting for the producer.
        """
        for block, lease in enumerate(self._leases):
            if lease is not None and lease.exporter() is None:
                self._leases[block] = None
                if self._released[block] < lease.taken:
                    self._released[block] = lease.taken
                    self._bell.ring()

    def peek(self, block: int) -> memoryview:
        """A block's memory without a lease, for a copy; :meth:`discard` the block afterwards."""
        start = self._layout.offset(block)
        return memoryview(self._mapping)[start : start + self._layout.block_nbytes]

    def discard(self, block: int) -> None:
        """Hands back a block that was never leased."""
        self._released[block] = self._taken[block]
        self._bell.ring()

    def _returner(self, block: int, count: int) -> Callable[[object], None]:
        # Runs in any thread, between any two instructions, at interpreter exit too: no lock, no
        # socket, nothing looked up in a module that may be gone by then.
        released, bell, keep = self._released, self._bell, interrupts.keep
        owner, current_process = self._owner, os.getpid

        def hand_back(_: object) -> None:
            try:
                if current_process() == owner and released[block] < count:
                    released[block] = count
                    bell.ring()
            except KeyboardInterrupt as interrupt:
                keep(interrupt)

        return hand_back


class _Lease(NamedTuple):
    exporter: weakref.ref[Exporter]
    taken: int
