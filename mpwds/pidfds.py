"""Descriptors of processes, also in a Python that was built without them, such as conda's."""

from __future__ import annotations

import ctypes
import errno
import os
import signal

_SEND_SIGNAL, _OPEN = 424, 434  # the kernel's numbers of its calls, on all processors but Alpha


def open_pidfd(pid: int) -> int:
    """A descriptor, closed on exec, that becomes readable when the process ends. As ``os.pidfd_open``."""
    try:
        return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else _call(_OPEN, pid, 0)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        needs = "mpwds needs Linux 5.3 or later, and a container that allows pidfd_open"
        raise OSError(error.errno, needs) from None


def kill(pidfd: int) -> None:
    """Kills the process of a descriptor, even if its number is that of another process by now.

    Raises ``ProcessLookupError`` if it has ended.
    """
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    else:
        _call(_SEND_SIGNAL, pidfd, int(signal.SIGKILL), None, 0)


def _call(number: int, *arguments: int | None) -> int:
    result: int = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if result < 0:
        raise OSError(code := ctypes.get_errno(), os.strerror(code))
    return result
