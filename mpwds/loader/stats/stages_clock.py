"""How long the stages behind a loader take, which run in the training process."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

from mpwds.loader.stats.trainer_times import TrainerTimes

_EVERY_NS = 100_000


def clocked(elements: Iterator[Any], times: Callable[[], TrainerTimes]) -> Generator[Any, None, None]:
    """The same elements; the clock of the loader's epoch hears how long they take.

    One element is timed about every tenth of a millisecond, at random distances, and stands for those since
    the one before: timing takes about a microsecond, which is more than small elements take.

    Args:
        elements: What the last stage yields.
        times: Returns the clock of the epoch that the loader is in.

    Example:
        >>> clock = TrainerTimes()
        >>> list(clocked(iter("abc"), lambda: clock))
        ['a', 'b', 'c']
    """
    rng = random.Random(0)  # of its own: a user's numbers stay as they are
    skip = 0
    while True:
        since_ns = time.monotonic_ns()
        yield from itertools.islice(elements, skip)
        clock = times()
        clock.stages_began()
        try:
            element = next(elements)
        except StopIteration:
            return
        finally:
            clock.stages_ended(weight=1 + skip)
        yield element
        each_ns = max(1.0, (time.monotonic_ns() - since_ns) / (skip + 1))
        # From 0 to twice the mean: what is done once in so many elements is neither always met nor never.
        skip = int(rng.uniform(0, 2 * _EVERY_NS / each_ns))
