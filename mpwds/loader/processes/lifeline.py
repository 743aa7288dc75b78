"""The lifeline: a worker ends when its trainer does, whatever either of them is doing."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import threading

PARENT_CHECK_S = 0.5

_is_held = False


def hold(descriptor: int) -> None:
    """Ties this process to the one that holds the writing end of the pipe ``descriptor``.

    :func:`kill_at_end_of` does it. A fork of the trainer that was made behind Python's back may keep
    the writing end open, so a thread also watches for a change of parent. (The parent-death signal
    would not do: it comes when the *thread* that started the worker ends.)

    Args:
        descriptor: Reading end of the lifeline.
    """
    parent = os.getppid()
    kill_at_end_of(descriptor)
    threading.Thread(target=_watch, args=(descriptor, parent), name="mpwds-lifeline", daemon=True).start()


def is_held() -> bool:
    """Whether this process ends with another one: it is a worker, or forks workers."""
    return _is_held


def kill_at_end_of(descriptor: int) -> None:
    """Has the kernel send SIGKILL to this process when the pipe's writing end closes.

    That works while this process is stopped, or stuck in code that holds the interpreter's lock. One whose
    end is closed already kills at once.
    """
    global _is_held
    _is_held = True
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    poller = select.poll()
    poller.register(descriptor, 0)
    if poller.poll(0):
        os.kill(os.getpid(), signal.SIGKILL)


def _watch(descriptor: int, parent: int) -> None:
    poller = select.poll()
    poller.register(descriptor, 0)
    while os.getppid() == parent and not poller.poll(PARENT_CHECK_S * 1000):
        pass
    os.kill(os.getpid(), signal.SIGKILL)
