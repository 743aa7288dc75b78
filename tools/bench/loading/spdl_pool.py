"""SPDL's worker processes with its pool of shared memory: one of each for each part of the work."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

BUFFERED = 3
"""Batches that each process prepares ahead: SPDL's default."""


def merged(parts: list[Callable[[], Iterable[Any]]], nbytes: int) -> Iterator[Any]:
    """The batches of all parts, in turn.

    Args:
        parts: What each process iterates, without end.
        nbytes: The most that a batch takes.
    """
    from spdl.pipeline import SharedMemorySegmentPool, iterate_in_subprocess

    processes = [
        # Those that are ahead, two that the consumer holds, one that is written.
        iterate_in_subprocess(
            part, buffer_size=BUFFERED, arena=SharedMemorySegmentPool(nbytes, BUFFERED + 3), daemon=True
        )
        for part in parts
    ]
    for iterator in itertools.cycle([iter(process) for process in processes]):
        yield next(iterator)
