"""How often, and after which pauses, something that failed is tried again."""

from __future__ import annotations

import random
from dataclasses import dataclass

_LONGEST_WISH_S = 120.0  # a server may ask for a longer pause than this; it does not get it

# The system's generator: the user's seeded ones are not touched, and the forks of a process, which fail
# together, do not come back together.
_jitter = random.SystemRandom()


class Interrupted(Exception):
    """Something failed that may succeed when it is tried again.

    Attributes:
        wait_s: The pause that the other side asked for, in seconds; ``None`` if it did not.
        unreached: Whether the other side could not be reached and never was: it may not exist.
    """

    def __init__(self, reason: str, wait_s: float | None = None, *, unreached: bool = False) -> None:
        super().__init__(reason)
        self.wait_s = wait_s
        self.unreached = unreached


@dataclass(frozen=True)
class Retries:
    """How often something is tried, with pauses that double and are shortened at random by up to a half.

    Args:
        tries: Tries in all; 1 gives up at the first failure. For a stream: tries without progress.
        first_s: The first pause, in seconds.
        longest_s: The longest pause, in seconds. With the default values ten tries take about a minute.
        unreached: Tries of a host that is unknown or refuses connections, and was never reached before; not
            more than ``tries``. With the default values these take about three seconds.

    Raises:
        ValueError: ``tries`` or ``unreached`` is below 1, or a pause is negative.

    Example:
        >>> pauses = [Retries().pause_s(failures) for failures in (1, 2, 3)]
        >>> 0.125 <= pauses[0] <= 0.25, 0.5 <= pauses[2] <= 1.0
        (True, True)
    """

    tries: int = 10
    first_s: float = 0.25
    longest_s: float = 15.0
    unreached: int = 5

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise ValueError(f"retries: tries must be at least 1, got {self.tries}")
        if self.unreached < 1:
            raise ValueError(f"retries: unreached must be at least 1, got {self.unreached}")
        if self.first_s < 0 or self.longest_s < 0:
            raise ValueError(f"retries: pauses must not be negative, got {self.first_s} and {self.longest_s}")

    def most(self, failure: Interrupted) -> int:
        """The tries in all, after a failure of this kind."""
        return min(self.tries, self.unreached) if failure.unreached else self.tries

    def pause_s(self, failures: int, wish_s: float | None = None) -> float:
        """The pause after a number of failures in succession, in seconds.

        Args:
            failures: At least 1.
            wish_s: What the other side asked for; up to two minutes are granted.
        """
        longest = min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, 60))
        pause = longest * _jitter.uniform(0.5, 1.0)
        return pause if wish_s is None else max(pause, min(wish_s, _LONGEST_WISH_S))
