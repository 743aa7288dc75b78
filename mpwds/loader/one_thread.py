"""Iterations that threads share: the one that comes into the middle of ``next()`` is told."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from mpwds.tracebacks import shorten

TAKE_TURNS = "another thread is in the middle of next() of this iteration: take turns"
"""What it is told."""


class OneThread(Iterator[Any]):
    """The elements of a generator, whose ``next()`` is for one thread at a time.

    Python sees to that; its ``ValueError: generator already executing`` says neither of what nor what to do.

    Args:
        elements: The generator.

    Raises:
        RuntimeError: In ``next()``, another thread is in the middle of it.

    Example:
        >>> def itself():
        ...     yield next(elements)
        >>> elements = OneThread(itself())
        >>> next(elements)
        Traceback (most recent call last):
        ...
        RuntimeError: another thread is in the middle of next() of this iteration: take turns
    """

    def __init__(self, elements: Generator[Any, None, None]) -> None:
        self._elements = elements
        self._advance = elements.__next__

    def __next__(self) -> Any:
        try:
            return self._advance()
        except ValueError as error:
            if _comes_from_no_code_of_the_generator(error):
                raise RuntimeError(TAKE_TURNS) from None
            shorten(error)
            raise
        except Exception as error:
            shorten(error)
            raise

    def close(self) -> None:
        """Ends the iteration."""
        self._elements.close()


def _comes_from_no_code_of_the_generator(error: ValueError) -> bool:
    here = error.__traceback__
    return here is not None and here.tb_next is None
