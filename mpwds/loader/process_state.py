"""What a dataset finds in its process and takes for its own, kept apart where several take turns there."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from mpwds.loader import torch_worker
from mpwds.loader.setup import WorkerSetup
from mpwds.pipeline import randomness

_VARIABLES = ("RANK", "WORLD_SIZE", "WORKER", "NUM_WORKERS")


def announce_place(index: int, setup: WorkerSetup) -> None:
    """Tells this process its place, in the variables where datasets look for it, and ``sys.argv``."""
    sys.argv = list(setup.argv)
    os.environ.update(
        RANK=str(setup.rank),
        WORLD_SIZE=str(setup.world_size),
        WORKER=str(index),
        NUM_WORKERS=str(setup.workers),
    )


class ProcessState(NamedTuple):
    """The state of this process that belongs to one of several datasets that take turns in it.

    Args:
        argv: ``sys.argv``.
        place: The variables that :func:`announce_place` sets.
        told: What torch has been told of the worker.
        drawn: Where the random generators are.
    """

    argv: list[str]
    place: dict[str, str]
    told: torch_worker.Announcement | None
    drawn: randomness.Snapshot


def capture() -> ProcessState:
    """The state as it is now.

    Example:
        >>> import random
        >>> before = capture()
        >>> number = random.random()
        >>> restore(before)
        >>> random.random() == number
        True
    """
    place = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    return ProcessState(sys.argv, place, torch_worker.announced(), randomness.snapshot())


def restore(state: ProcessState) -> None:
    """Makes the state what it was at :func:`capture`."""
    sys.argv = state.argv
    for name, value in state.place.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    if state.told is not None:
        torch_worker.announce(*state.told)
    randomness.resume(state.drawn)
