"""Signals while they must not act: while processes start or end, in finalizers, and in calls that give up."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}

pending: list[KeyboardInterrupt] = []

defer = pending.append
"""Keeps a KeyboardInterrupt that a finalizer caught, for :func:`raise_deferred`."""


def raise_deferred() -> None:
    """Raises a deferred KeyboardInterrupt, if there is one: call it where the program can be interrupted."""
    if pending:
        raise pending.pop()


@contextlib.contextmanager
def deferring() -> Iterator[None]:
    """Defers a KeyboardInterrupt that its block raises. For finalizers."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        defer(interrupt)


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Ctrl-C inside this block takes effect at its end, so that nothing is left half started or closed."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    interrupts: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda *interrupt: interrupts.append(interrupt))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if interrupts:
            handler(*interrupts[-1])


def uninterrupted(call: Callable[..., T], *arguments: Any) -> T:
    """Makes a call during which this thread is sent no signal but those that end a program.

    ``zmq.Context.term`` gives up at any signal with a handler, such as the SIGCHLD of a program that uses
    torch's ``DataLoader``: what was sent is not waited for, and threads and descriptors stay. A socket's
    ``monitor`` and ``disconnect`` raise ``InterruptedSystemCall``.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _ENDING)
    try:
        return call(*arguments)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
