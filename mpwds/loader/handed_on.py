"""Counts the batches that a program receives, where the loader takes some ahead of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from mpwds.tracebacks import shorten


class Counting(Protocol):
    """What counts the batches of an epoch."""

    finished: bool

    def hand_on(self) -> None:
        """Counts a batch."""
        ...


class HandedOn(Iterator[Any]):
    """The last step of an epoch, which counts the batches that the program receives.

    Args:
        source: Gives the batches.
        counting: Counts each batch, and is marked as finished at the end.
    """

    def __init__(self, source: Iterator[Any], counting: Counting) -> None:
        self._source = source
        self._counting = counting

    def __next__(self) -> Any:
        try:
            batch = next(self._source)
        except StopIteration:
            self._counting.finished = True
            raise
        except Exception as error:
            shorten(error)
            raise
        self._counting.hand_on()
        return batch
