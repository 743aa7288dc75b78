"""The batches of one rank, and what it delivers behind them while others still have some."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from mpwds.errors import EvenEpochError
from mpwds.loader.options import Even


class OwnPart:
    """A rank's part of an epoch, of which some batches may be taken ahead of the training loop.

    Args:
        passes: Begins pass ``n`` through the part, from 0: the epoch itself; those after it are to come in
            another order.
        even: What comes behind the last batch: with ``"pad"`` this one again, a copy of it each time, with
            ``"wrap"`` another pass.
        counted: How many batches it has; ``None`` if that is not known.

    Attributes:
        taken: Batches that were taken from it.

    Raises:
        EvenEpochError: While iterating, it has not as many batches as were counted, or there is nothing to
            repeat.

    Example:
        >>> part = OwnPart(lambda number: iter("ab"), "pad")
        >>> part.look_ahead(3), [part.next() for _ in range(4)]
        (2, ['a', 'b', 'b', 'b'])
    """

    def __init__(
        self, passes: Callable[[int], Iterator[Any]], even: Even, counted: int | None = None
    ) -> None:
        self._counted = counted
        self.taken = 0
        self._passes = passes
        self._even = even
        self._source: Iterator[Any] | None = passes(0)
        self._again: Iterator[Any] | None = None
        self._ahead: deque[Any] = deque()
        self._last: Any = None
        self._pass = 0

    @property
    def ahead(self) -> int:
        """Batches that were taken and not delivered."""
        return len(self._ahead)

    def look_ahead(self, number: int) -> int:
        """Takes batches ahead until there are ``number`` of them, or it ends; returns how many there are."""
        while len(self._ahead) < number and self._source is not None:
            try:
                batch = next(self._source)
            except StopIteration:
                self._source = None
                if self._counted is not None and self.taken != self._counted:
                    raise self._miscounted("ended") from None
                break
            if self.taken == self._counted:
                raise self._miscounted("goes on")
            self.taken += 1
            self._ahead.append(batch)
        return len(self._ahead)

    def next(self) -> Any:
        """Its next batch, or what comes behind the last one.

        With ``"pad"`` it must be known which batch is the last: by ``counted``, or by looking one further
        ahead before each.
        """
        if self.look_ahead(1) == 0:
            # When an epoch is resumed inside its padding, the last real batch is not known.
            return self._of_another_pass() if self._last is None else copy.deepcopy(self._last)
        batch = self._ahead.popleft()
        is_last = not self._ahead and (self._source is None or self.taken == self._counted)
        if is_last and self._even == "pad":
            self._last = copy.deepcopy(batch)  # the training loop may write into the batch itself
        return batch

    def check_all_came(self) -> None:
        """Makes sure that no batch comes behind the last one that was counted, if that has been taken."""
        if self.taken == self._counted:
            self.look_ahead(len(self._ahead) + 1)

    def close(self) -> None:
        """Lets go of what is left."""
        self._source = self._again = self._last = None
        self._ahead.clear()

    def _of_another_pass(self) -> Any:
        if self._again is not None:
            with suppress(StopIteration):
                return next(self._again)
        self._pass += 1
        self._again = self._passes(self._pass)
        try:
            return next(self._again)
        except StopIteration:
            raise EvenEpochError(
                f'even="wrap": pass {self._pass} through this rank\'s part of the dataset gave no batch'
            ) from None

    def _miscounted(self, what: str) -> EvenEpochError:
        return EvenEpochError(
            f"this rank's part of the epoch {what} after {self.taken} batches, and counted were "
            f"{self._counted}: the dataset changed, or a rank's part of it was empty, and other ranks expect "
            "batches that do not come"
        )
