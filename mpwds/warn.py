"""Warnings that point at the user's line, from any depth of this package."""

from __future__ import annotations

import sys
import warnings

from mpwds.tracebacks import is_ours

_TORCHS_LOADER = "torch.utils.data.dataloader"


def warn(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Issues a warning for the innermost line outside this package and torch's ``DataLoader``."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and (is_ours(frame) or frame.f_globals.get("__name__") == _TORCHS_LOADER):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
