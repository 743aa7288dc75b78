"""Ctrl-C that came inside a finalizer, where Python swallows what is raised: kept, and raised later."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_kept: list[KeyboardInterrupt] = []

keep = _kept.append
"""Keeps a KeyboardInterrupt that a finalizer caught."""


def raise_kept() -> None:
    """Raises a KeyboardInterrupt that was kept. For places where the program can be interrupted.

    Raises:
        KeyboardInterrupt: One was kept.

    Example:
        >>> raise_kept()
    """
    if _kept:
        raise _kept.pop()


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Keeps a KeyboardInterrupt that comes out of its block. For finalizers.

    Example:
        >>> with kept():
        ...     print("finished")
        finished
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        keep(interrupt)
