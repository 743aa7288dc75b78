"""The lifeline: a worker ends when its trainer does, whatever either of them is doing.

A fork of the trainer that kept a worker's channel or lifeline open would keep the worker alive after the
trainer's death. So a fork gets ``/dev/null`` in place of such descriptors (:func:`guard`).
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import threading

PARENT_CHECK_S = 0.5

_is_held = False
_guarded: set[int] = set()


def hold(descriptor: int) -> None:
    """Ties this process to the one that holds the writing end of the pipe ``descriptor``.

    :func:`kill_at_end_of` does it. A fork of the trainer that was made behind Python's back may keep the
    writing end open, so a thread also watches for a change of parent. (The parent-death signal would not do:
    it comes when the *thread* that started the worker ends.)
    """
    parent = os.getppid()
    kill_at_end_of(descriptor)
    threading.Thread(target=_watch, args=(descriptor, parent), name="mpwds-lifeline", daemon=True).start()


def is_held() -> bool:
    """Whether this process ends with another one: it is a worker or a fork server."""
    return _is_held


def kill_at_end_of(descriptor: int) -> None:
    """Has the kernel send SIGKILL to this process when the pipe's writing end closes.

    It does so even while this process is stopped, or stuck in code that holds the interpreter's lock. If the
    end is closed already, this process is killed at once.
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


def guard(descriptor: int) -> None:
    """Keeps a descriptor from forks of this process, until :func:`unguard`."""
    _guarded.add(descriptor)


def unguard(descriptor: int) -> None:
    """Ends :func:`guard`; call it before the descriptor is closed."""
    _guarded.discard(descriptor)


def _replace_guarded_in_child() -> None:
    """Puts ``/dev/null`` under the guarded numbers: objects that inherit them may close them again."""
    if not _guarded:
        return
    first = _guarded.pop()
    os.close(first)  # before anything is opened: there may be no other number left
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    if nothing != first:
        _guarded.add(first)
    for descriptor in _guarded:
        try:
            os.dup2(nothing, descriptor, inheritable=False)
        except OSError:  # the limit was lowered since: nobody will get this number either
            os.close(descriptor)
    if nothing != first:
        os.close(nothing)
    _guarded.clear()


os.register_at_fork(after_in_child=_replace_guarded_in_child)
