"""Descriptors that only the trainer may hold: a fork of it gets ``/dev/null`` in their place.

A fork that kept a worker's channel or lifeline open would keep the worker alive after the trainer's death.
The numbers stay in use there, so that closing them again, by whichever object inherits them, does no harm.
"""

from __future__ import annotations

import os

_guarded: set[int] = set()


def guard(descriptor: int) -> None:
    """Keeps a descriptor from forks of this process, until :func:`unguard`."""
    _guarded.add(descriptor)


def unguard(descriptor: int) -> None:
    """Ends :func:`guard`; call it before the descriptor is closed."""
    _guarded.discard(descriptor)


def _replace_in_child() -> None:
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
        except OSError:  # the limit has been lowered since: nobody will get this number either
            os.close(descriptor)
    if nothing != first:
        os.close(nothing)
    _guarded.clear()


os.register_at_fork(after_in_child=_replace_in_child)
