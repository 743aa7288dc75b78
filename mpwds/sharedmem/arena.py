"""The producer's side of shared memory: blocks to write batches into, used again and again.

A segment starts with one page of counters, two for each block; the blocks follow, each a whole number of
pages. Each counter has one writer:

* ``taken``, the producer: it counts up when it takes a block, then writes into it and sends its number;
* ``released``, the consumer: it copies the block's ``taken`` when it no longer needs the block, then rings
  the producer's :class:`EventFd`.

A block is free while its counters are equal. Releasing twice, or late, releases nothing that was taken
since. The producer, finding no block free, clears the event, looks again, and only then waits for it.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from mpwds.sharedmem import segment

MOST_BLOCKS = segment.PAGE_NBYTES // 16
_GROWTH = 1.25
_COMMIT_STEP = 1 << 20


@dataclass(frozen=True)
class Layout:
    """The layout of a segment: ``blocks`` blocks of ``block_nbytes`` bytes after one page of counters."""

    blocks: int
    block_nbytes: int

    @property
    def nbytes(self) -> int:
        return segment.PAGE_NBYTES + self.blocks * self.block_nbytes

    def offset(self, block: int) -> int:
        return segment.PAGE_NBYTES + block * self.block_nbytes

    def counters(self, memory: memoryview) -> tuple[memoryview, memoryview]:
        """``taken`` and ``released`` of all blocks, in a segment's memory."""
        counters = memory[: segment.PAGE_NBYTES].cast("Q")
        return counters[: self.blocks], counters[MOST_BLOCKS : MOST_BLOCKS + self.blocks]


class Block(NamedTuple):
    number: int
    memory: memoryview


class Arena:
    """Blocks of shared memory for batches.

    The first batch sets the size of a block, and a larger one brings a new segment. A block takes memory when
    it is first used, as much as its batch needs. The lowest free block is used first: a consumer that keeps
    up makes the producer reuse few blocks, which stay in the processor's cache.

    ``announce`` gets the layout and the descriptor of each new segment before any of its blocks is used; the
    arena closes the descriptor.
    """

    def __init__(self, blocks: int, announce: Callable[[Layout, int], None]) -> None:
        if not 1 <= blocks <= MOST_BLOCKS:
            raise ValueError(f"arena: blocks must be between 1 and {MOST_BLOCKS}, got {blocks}")
        self._blocks = blocks
        self._announce = announce
        self._segment: _Segment | None = None

    def acquire(self, nbytes: int) -> Block | None:
        """A free block of at least ``nbytes`` bytes, taken; ``None`` while all are in use."""
        current = self._segment
        if current is None or nbytes > current.layout.block_nbytes:
            current = self._grow(nbytes)
        return current.take(nbytes)

    def release(self, block: Block) -> None:
        """Takes back a block of the current segment that was not sent."""
        if self._segment is not None:
            self._segment.taken[block.number] -= 1

    def _grow(self, nbytes: int) -> _Segment:
        if self._segment is not None:
            nbytes = max(nbytes, int(self._segment.layout.block_nbytes * _GROWTH))
            self._segment = None
        layout = Layout(self._blocks, -(-nbytes // segment.PAGE_NBYTES) * segment.PAGE_NBYTES)
        grown = _Segment(layout)
        self._announce(layout, grown.descriptor)
        self._segment = grown
        return grown


class _Segment:
    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.descriptor = segment.create(layout.nbytes)
        weakref.finalize(self, os.close, self.descriptor)
        segment.commit(self.descriptor, 0, segment.PAGE_NBYTES)
        self._memory = memoryview(segment.map(self.descriptor, layout.nbytes))
        self.taken, self._released = layout.counters(self._memory)
        self._committed = [0] * layout.blocks

    def take(self, nbytes: int) -> Block | None:
        taken, released = self.taken, self._released
        for number in range(self.layout.blocks):
            if taken[number] == released[number]:
                break
        else:
            return None
        start, size = self.layout.offset(number), self.layout.block_nbytes
        committed = self._committed[number]
        if nbytes > committed:
            wanted = min(-(-nbytes // _COMMIT_STEP) * _COMMIT_STEP, size)
            segment.commit(self.descriptor, start + committed, wanted - committed)
            self._committed[number] = wanted
        taken[number] += 1
        return Block(number, self._memory[start : start + size])


class EventFd:
    """An eventfd, new or taken over. Ringing takes no lock and never blocks, so a finalizer may do it.

    Code that may still ring keeps a reference to this object, and the last reference closes the descriptor.
    So nothing is written to a descriptor number that the system has given away again.
    """

    _descriptor = -1

    def __init__(self, descriptor: int | None = None) -> None:
        new = os.EFD_CLOEXEC | os.EFD_NONBLOCK
        self._descriptor = os.eventfd(0, new) if descriptor is None else descriptor
        # Bound here, because the last ring and the end may come after modules are gone.
        self._write = os.eventfd_write
        self._close = os.close

    def fileno(self) -> int:
        return self._descriptor

    def ring(self) -> None:
        """Wakes the process that waits, now or when it next waits."""
        if self._descriptor >= 0:
            self._write(self._descriptor, 1)

    def clear(self) -> bool:
        """Forgets the rings so far; returns whether there were any."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)
            return True
        return False

    def close(self) -> None:
        """Closes the descriptor, when nothing will ring any more."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._close(descriptor)

    def __del__(self) -> None:
        self.close()
