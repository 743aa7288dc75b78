"""Both ends of shared memory in one process."""

import contextlib
import sys

from mpwds.sharedmem.arena import Arena, EventFd
from mpwds.sharedmem.lease import LeasedArena


def free_blocks(arena):
    """The number of blocks that the producer could take now."""
    taken = []
    while (block := arena.acquire(1)) is not None:
        taken.append(block)
    for block in taken:
        arena.release(block)
    return len(taken)


class Pair:
    """A producer's arena of two blocks and the consumer's mapping of it."""

    def __init__(self, pinning=None):
        self.bell = EventFd()
        self.pinning = pinning
        self.consumer = None
        self.producer = Arena(2, self._map)
        self.nbytes = 4096

    def _map(self, layout, descriptor):
        self.consumer = LeasedArena(layout, descriptor, self.bell, self.pinning)

    def send(self, value):
        block = self.producer.acquire(self.nbytes)
        block.memory[:] = bytes([value]) * block.memory.nbytes
        return self.consumer.lease(block.number)

    def free(self):
        return free_blocks(self.producer)

    def close(self):
        self.producer = self.consumer = None


@contextlib.contextmanager
def ctrl_c_in_hand_back():
    """A context in which a Ctrl-C comes as soon as the finalizer of a block begins to hand it back."""

    def interrupt(*_):
        sys.settrace(None)
        raise KeyboardInterrupt

    def interrupt_hand_back(frame, event, argument):
        return interrupt if frame.f_code.co_name == "hand_back" else None

    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    sys.settrace(interrupt_hand_back)
    try:
        yield
    finally:
        sys.settrace(None)
        sys.unraisablehook = hook
