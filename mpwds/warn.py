"""Warnings that point at the user's line, from any depth of this package."""

from __future__ import annotations

import opcode
import sys
import warnings

from mpwds.errors import is_ours

_TORCHS_LOADER = "torch.utils.data.dataloader"
_DECORATE = ("mpwds.suggestions", "mpwds.errors")  # frames of decorators lie between a method and its caller
_CACHE, _POP_TOP = opcode.opmap.get("CACHE"), opcode.opmap.get("POP_TOP")


def warn(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Issues a warning for the innermost line outside this package and torch's ``DataLoader``."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and (is_ours(frame) or frame.f_globals.get("__name__") == _TORCHS_LOADER):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def warn_if_dropped(kind: type, call: object) -> None:
    """Warns if the user's statement drops the result of a method of a ``kind``, which calls this function.

    The user's code then discards the result in its next instruction. Results that are displayed, tested or
    kept have another instruction there. ``call`` prints as the method's call.
    """
    frame = sys._getframe(1)
    while is_ours(frame) and frame.f_back is not None:
        if frame.f_globals["__name__"] not in _DECORATE and not isinstance(frame.f_locals.get("self"), kind):
            return  # the package's own use
        frame = frame.f_back
    code, following = frame.f_code.co_code, frame.f_lasti + 2
    while code[following] == _CACHE:
        following += 2
    if code[following] == _POP_TOP:
        warn(
            f"{call} has no effect: methods return a new dataset, which this line drops. Write "
            f"dataset = dataset.{call}",
            UserWarning,
        )
