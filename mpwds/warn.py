"""Warnings that point at the program's own line, from whatever depth of this package they come."""

from __future__ import annotations

import sys
import warnings


def warn(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Issues a warning for the innermost line that is not of this package.

    Args:
        message: What happened, and what to do about it.
        category: The warning's class.

    Example:
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warn("batches are delivered unpinned")
        >>> caught[0].category.__name__
        'RuntimeWarning'
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def is_ours(module: str) -> bool:
    """Whether a module of that name belongs to this package.

    Example:
        >>> is_ours("mpwds.nest"), is_ours("numpy")
        (True, False)
    """
    return module.partition(".")[0] == __package__
