"""Epochs of equally many batches on all ranks."""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from mpwds.errors import EvenEpochError
from mpwds.loader.engine.options import Even
from mpwds.loader.ranks.agreement import MOST_AHEAD, Agreement, TorchRanks, target_of
from mpwds.loader.ranks.lengths import CountOf, all_ranks
from mpwds.pipeline.context import Context
from mpwds.pipeline.counts import LengthUnknown
from mpwds.pipeline.epochs import epoch_of_repetition


def evened(
    even: Even,
    here: Context,
    start: Callable[[int], Iterator[Any]],
    count: CountOf,
    delivered: int,
    timeout: float | None,
) -> EvenIterator:
    """Begins an even epoch of a loader, or of the stages behind it, for each of several ranks.

    ``start`` begins an epoch by its number. ``delivered`` is the number of batches of a resumed epoch that
    were delivered before, the same on all ranks.
    """

    def begin(number: int) -> Iterator[Any]:
        return start(epoch_of_repetition(number, "wrap", here.epoch) if number else here.epoch)

    try:
        counts = [count(rank, True) for rank in all_ranks(here)]
    except LengthUnknown:
        ranks = TorchRanks()
    else:
        target = target_of(even, counts)
        own = counts[here.rank]
        part = OwnPart(begin, even if own < target else "drop", max(0, own - delivered))
        return EvenIterator(part, lambda delivered: target - delivered, delivered)
    part = OwnPart(begin, even)
    timeout = None if timeout is None else timeout * MOST_AHEAD
    return EvenIterator(part, Agreement(ranks, part.look_ahead, even, here.epoch, timeout), delivered)


class EvenIterator(Iterator[Any]):
    """The batches of an epoch, as many as all other ranks deliver.

    ``grant`` is told how many batches were delivered, and returns how many more each rank delivers before it
    is called again; 0 ends the epoch.
    """

    def __init__(self, part: OwnPart, grant: Callable[[int], int], delivered: int = 0) -> None:
        self._delivered = delivered
        self._part = part
        self._grant = grant
        self._granted = 0
        self._running = True

    def __next__(self) -> Any:
        if not self._running:
            raise StopIteration
        try:
            if self._granted == 0:
                self._granted = self._grant(self._delivered)
            if self._granted == 0:
                self._part.check_all_came()
                raise StopIteration
            batch = self._part.next()
        except BaseException:
            self._running = False
            self._part.close()
            raise
        self._granted -= 1
        self._delivered += 1
        return batch


class OwnPart:
    """A rank's part of an epoch. Some of its batches may be taken ahead of the training loop.

    ``passes`` begins pass ``n`` through the part. Pass 0 is the epoch; the order of others should differ.
    The last batch is followed by copies of it with ``"pad"``, by another pass with ``"wrap"``. ``counted`` is
    how many batches it has, if that is known.
    """

    def __init__(
        self, passes: Callable[[int], Iterator[Any]], even: Even, counted: int | None = None
    ) -> None:
        self._even = even
        self._counted = counted
        self._taken = 0
        self._source: Iterator[Any] | None = passes(0)
        self._again = _other_passes(passes)
        self._ahead: deque[Any] = deque()
        self._last: Any = None

    def look_ahead(self, number: int) -> int:
        """Takes batches ahead until there are ``number`` of them, or it ends; returns how many there are."""
        while len(self._ahead) < number and self._source is not None:
            try:
                batch = next(self._source)
            except StopIteration:
                self._source = None
                if self._counted is not None and self._taken != self._counted:
                    raise self._miscounted("ended") from None
                break
            if self._taken == self._counted:
                raise self._miscounted("continues")
            self._taken += 1
            self._ahead.append(batch)
        return len(self._ahead)

    def next(self) -> Any:
        """Its next batch, or a repeated one behind the last, which ``counted`` or looking ahead tells."""
        if self.look_ahead(1) == 0:
            # When an epoch is resumed inside its padding, the last real batch is not known.
            return next(self._again) if self._last is None else copy.deepcopy(self._last)
        batch = self._ahead.popleft()
        is_last = not self._ahead and (self._source is None or self._taken == self._counted)
        if is_last and self._even == "pad":
            self._last = copy.deepcopy(batch)  # the training loop may write into the batch itself
        return batch

    def check_all_came(self) -> None:
        """Makes sure that no batch follows the last one that was counted, if that has been taken."""
        if self._taken == self._counted:
            self.look_ahead(len(self._ahead) + 1)

    def close(self) -> None:
        """Drops the batches that are left."""
        self._source, self._again, self._last = None, iter(()), None
        self._ahead.clear()

    def _miscounted(self, what: str) -> EvenEpochError:
        return EvenEpochError(
            f"this rank's part of the epoch {what} after {self._taken} batches, but {self._counted} were "
            "counted, and other ranks expect as many: the dataset has changed, or a rank's part of it was "
            "empty"
        )


def _other_passes(passes: Callable[[int], Iterator[Any]]) -> Iterator[Any]:
    for number in itertools.count(1):
        batches = passes(number)
        try:
            yield next(batches)
        except StopIteration:
            raise EvenEpochError(
                f'even="wrap": pass {number} through this rank\'s part of the dataset gave no batch'
            ) from None
        yield from batches
