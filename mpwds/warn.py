"""Warnings that point at the user's line, from any depth of this package."""

from __future__ import annotations

import sys
import warnings


def warn(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Issues a warning for the innermost line outside this package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def is_ours(module: str) -> bool:
    """Whether a module of that name belongs to this package."""
    return module.partition(".")[0] == __package__
