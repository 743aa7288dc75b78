"""A bell between two processes: one rings, the other waits for it together with its sockets."""

from __future__ import annotations

import contextlib
import os


class Bell:
    """An eventfd, new or taken over. Ringing takes no lock and never blocks, so a finalizer may do it.

    Code that may still ring keeps a reference to the bell, and the last reference closes the descriptor. So
    nothing is written to a descriptor number that the system has given away again.
    """

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
        if hasattr(self, "_close"):
            self.close()
