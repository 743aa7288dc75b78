"""Ctrl-C inside a finalizer, where Python swallows exceptions: kept, and raised later."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

pending: list[KeyboardInterrupt] = []
"""Kept interrupts."""

keep = pending.append
"""Keeps a KeyboardInterrupt that a finalizer caught."""


def raise_kept() -> None:
    """Raises a kept KeyboardInterrupt, if there is one. For places where the program can be interrupted."""
    if pending:
        raise pending.pop()


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Keeps a KeyboardInterrupt that its block raises. For finalizers."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        keep(interrupt)
