"""Which tasks of a DataLoader's epoch are answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


class Answered:
    """Numbers of tasks: all below one, and, where answers come out of order, some above.

    Args:
        below: All tasks with a lower number are answered.
        above: So are these.
        workers: Answers of each worker.

    Example:
        >>> answered = Answered()
        >>> for task in (0, 2, 3):
        ...     answered.add(task, worker=task % 2)
        >>> answered.below, answered.above, list(answered.left("abcdef"))
        (1, {2, 3}, [(1, 'b'), (4, 'e'), (5, 'f')])
    """

    def __init__(self, below: int = 0, above: Iterable[int] = (), workers: Iterable[int] = ()) -> None:
        self.below = below
        self.above = set(above)
        self.workers = Counter(dict(enumerate(workers)))

    @property
    def count(self) -> int:
        """How many are answered."""
        return self.below + len(self.above)

    def add(self, task: int, worker: int = 0) -> None:
        """Task number ``task`` is answered, by ``worker``."""
        self.workers[worker] += 1
        if task != self.below:
            self.above.add(task)
            return
        self.below += 1
        while self.above and self.below in self.above:
            self.above.remove(self.below)
            self.below += 1

    def left(self, indices: Iterable[T]) -> Iterator[tuple[int, T]]:
        """The numbers of the tasks that are not answered now, and what they are."""
        above = frozenset(self.above)
        below = self.below
        return ((task, index) for task, index in enumerate(indices) if task >= below and task not in above)
