"""How long the stages behind a loader take, which run in the training process."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

from mpwds.loader.trainer_times import TrainerTimes

_EVERY_NS = 100_000
_MEMORY = 0.9


def clocked(elements: Iterator[Any], times: Callable[[], TrainerTimes]) -> Generator[Any, None, None]:
    """The same elements; how long each takes is told to the clock of the loader's epoch.

    Of small elements only some, drawn at random, about one in a tenth of a millisecond: looking at the clock
    takes about a microsecond. The others pass at the price of a delegating generator.

    Args:
        elements: What the last stage yields.
        times: Returns the clock of the epoch that the loader is in.

    Example:
        >>> clock = TrainerTimes()
        >>> list(clocked(iter("abc"), lambda: clock))
        ['a', 'b', 'c']
    """
    rng = random.Random(0)  # of its own: a user's numbers stay as they are
    gap = mean_gap = 0.0
    while True:
        skipped = int(gap)
        since_ns = time.monotonic_ns()
        yield from itertools.islice(elements, skipped)
        clock = times()
        clock.stages_began()
        try:
            element = next(elements)
        except StopIteration:
            return
        finally:
            clock.stages_ended(weight=1 + mean_gap)
        yield element
        each_ns = max(1.0, (time.monotonic_ns() - since_ns) / (skipped + 1))
        mean_gap = _MEMORY * mean_gap + (1 - _MEMORY) * max(0.0, _EVERY_NS / each_ns - 1)
        # From 0 to twice the mean: what is done once in so many elements is neither always met nor never.
        gap = rng.uniform(0, 2 * mean_gap + 1)
