"""Short tracebacks: the user's frames without this package's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import FrameType

from mpwds.errors import WorkerTraceback

FULL = "MPWDS_FULL_TRACEBACK"  # environment variable that keeps all frames


def shorten(error: BaseException, keep_first: bool = True) -> None:
    """Removes this package's frames from the traceback of ``error`` and of its causes and contexts.

    Call it where the error leaves the package, before ``raise``. Frames of the user and of other packages
    stay. So does the innermost frame, because it shows where the error was raised, and with ``keep_first``
    the outermost, which is the caller's. An exception that a worker raised has its frames in its cause. With
    the environment variable ``MPWDS_FULL_TRACEBACK`` set to anything but ``0``, this does nothing.
    """
    if os.environ.get(FULL, "0") not in ("", "0"):
        return
    for each in _with_those_behind(error):
        first = each.__traceback__
        if first is None:
            continue
        frames = [first]
        while (following := frames[-1].tb_next) is not None:
            frames.append(following)
        kept = [frame for frame in frames[:-1] if not is_ours(frame.tb_frame)]
        if not (isinstance(each.__cause__, WorkerTraceback) and is_ours(frames[-1].tb_frame)):
            kept.append(frames[-1])
        if not kept or (each is error and keep_first and kept[0] is not first):
            kept.insert(0, first)
        for frame, after in zip(kept, [*kept[1:], None], strict=True):
            frame.tb_next = after
        each.with_traceback(kept[0])  # an assignment fails for frozen dataclasses


def _with_those_behind(error: BaseException) -> Iterator[BaseException]:
    """``error``, its causes and contexts, and the members of exception groups among them."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            waiting += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
            yield each


def is_ours(frame: FrameType) -> bool:
    """True if a frame runs this package's code."""
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0] == __package__
