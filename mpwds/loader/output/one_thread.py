"""Iterators that refuse a second thread."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from typing import Any

from mpwds.tracebacks import shorten

TAKE_TURNS = "another thread is in the middle of next() of this iteration: take turns"


class OneThread(Iterator[Any]):
    """The elements of a generator. While a thread is in ``next()``, that of another raises RuntimeError."""

    def __init__(self, elements: Generator[Any, None, None]) -> None:
        self._elements = elements
        self._entrance = threading.Lock()

    def __next__(self) -> Any:
        if not self._entrance.acquire(blocking=False):
            raise RuntimeError(TAKE_TURNS)
        try:
            return next(self._elements)
        except Exception as error:
            shorten(error)
            raise
        finally:
            self._entrance.release()

    def close(self) -> None:
        """Ends the iteration."""
        self._elements.close()
