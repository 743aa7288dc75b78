"""The work without a loader: the most that processes can do."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class BareProcesses:
    """Processes that make batches and throw them away; for each they send a byte.

    Args:
        parts: What each of them iterates.
        batch: Yielded in place of each batch that was made.
    """

    def __init__(self, parts: list[Callable[[], Iterable[Any]]], batch: Any) -> None:
        context = multiprocessing.get_context("fork")
        self._batch = batch
        self._ticks, theirs = os.pipe()
        self._processes = [context.Process(target=_work, args=(part, theirs), daemon=True) for part in parts]
        for process in self._processes:
            process.start()
        os.close(theirs)

    def __iter__(self) -> Iterator[Any]:
        while os.read(self._ticks, 1):
            yield self._batch

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        os.close(self._ticks)


def _work(part: Callable[[], Iterable[Any]], ticks: int) -> None:
    for _ in part():
        os.write(ticks, b".")
