"""Epochs of equally many batches on all ranks."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from mpwds.errors import EvenEpochError
from mpwds.loader.engine.options import Even
from mpwds.loader.ranks.agreement import Agreement, TorchRanks
from mpwds.loader.ranks.even import MOST_AHEAD, WINDOW, Evened, all_ranks
from mpwds.loader.ranks.lengths import CountOf
from mpwds.pipeline.context import Context
from mpwds.pipeline.counts import LengthUnknown
from mpwds.pipeline.epochs import epoch_of_repetition
from mpwds.warn import warn


def evened(
    loader: Evened,
    even: Even,
    epoch: int,
    start: Callable[[int], Iterator[Any]],
    count: CountOf,
    delivered: int = 0,
) -> EvenIterator:
    """Begins an even epoch of a loader, for each of several ranks.

    Args:
        loader: The loader.
        even: The loader's.
        epoch: Number of the epoch.
        start: Begins an epoch of the loader, or of the stages behind it.
        count: Counts its batches.
        delivered: Batches of a resumed epoch that were delivered before; the same number on all ranks.

    Raises:
        EvenEpochError: The ranks have to agree and cannot, or one of them has no batch.
    """

    def begin(number: int) -> Iterator[Any]:
        return start(epoch_of_repetition(number, "wrap", epoch) if number else epoch)

    here = replace(Context.current(epoch), seed=loader.seed)
    try:
        counts = [count(rank, exact=True) for rank in all_ranks(here)]
    except LengthUnknown:
        ranks = TorchRanks()
    else:
        target = target_of(even, counts)
        own = counts[here.rank]
        part = OwnPart(begin, even if own < target else "drop", max(0, own - delivered))
        return EvenIterator(part, lambda delivered: target - delivered, delivered)
    timeout = None if loader.timeout is None else loader.timeout * MOST_AHEAD
    part = OwnPart(begin, even)
    return EvenIterator(part, Agreed(part, even, Agreement(ranks, even, epoch, timeout)), delivered)


class EvenIterator(Iterator[Any]):
    """The batches of an epoch, as many as all other ranks deliver.

    Args:
        part: This rank's batches.
        grant: Called with the number of batches delivered; returns how many more each rank delivers before it
            is called again. 0 ends the epoch.
        delivered: Batches of a resumed epoch that were delivered before.

    While iterating:
        EvenEpochError: A rank has no batch, is gone, failed, or was given other options; or this rank has
            another number of batches than its dataset says.

    Example:
        >>> part = OwnPart(lambda number: iter("ab"), "wrap")
        >>> list(EvenIterator(part, lambda delivered: 5 - delivered))
        ['a', 'b', 'a', 'b', 'a']
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


class Agreed:
    """Grants batches as the ranks agree, window by window.

    Each rank takes up to ``window`` batches ahead of the training loop and tells the others how many it has.
    They talk again when as many are delivered as all of them have. To pad, a rank takes one batch more, to
    see whether the one before is its last.
    """

    def __init__(self, part: OwnPart, even: Even, agreement: Agreement, window: int = WINDOW) -> None:
        self._part = part
        self._even = even
        self._agreement = agreement
        self._window = window

    def __call__(self, delivered: int) -> int:
        offers = self._agreement.batches(self._look_ahead())
        if delivered == 0:
            return target_of(self._even, offers)
        return offers.least if self._even == "drop" else offers.most

    def _look_ahead(self) -> int:
        """Returns how many batches are ready. If making one fails, tells the other ranks, which raise too."""
        try:
            return min(self._part.look_ahead(self._window + (self._even == "pad")), self._window)
        except Exception:
            with suppress(EvenEpochError):  # which says that this rank failed
                self._agreement.batches(0, failed=True)
            raise


class OwnPart:
    """A rank's part of an epoch. Some of its batches may be taken ahead of the training loop.

    Args:
        passes: Begins pass ``n`` through the part. Pass 0 is the epoch; the order of others should differ.
        even: What follows the last batch: with ``"pad"`` a new copy of it each time, with ``"wrap"`` another
            pass.
        counted: How many batches it has; ``None`` if that is not known.

    Raises:
        EvenEpochError: While iterating, the number of batches is not ``counted``, or there is nothing to
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
        self._taken = 0
        self._passes = passes
        self._even = even
        self._source: Iterator[Any] | None = passes(0)
        self._again: Iterator[Any] | None = None
        self._ahead: deque[Any] = deque()
        self._last: Any = None
        self._pass = 0

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
        """Its next batch, or a repeated one behind the last.

        With ``"pad"`` the last batch must be recognised: by ``counted``, or by looking one batch further
        ahead.
        """
        if self.look_ahead(1) == 0:
            # When an epoch is resumed inside its padding, the last real batch is not known.
            return self._of_another_pass() if self._last is None else copy.deepcopy(self._last)
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
            f"this rank's part of the epoch {what} after {self._taken} batches, but {self._counted} were "
            "counted, and other ranks expect as many: the dataset has changed, or a rank's part of it was "
            "empty"
        )


def target_of(even: Even, counts: Sequence[int]) -> int:
    """How many batches every rank delivers, given those of all ranks, or the smallest and largest number.

    Raises:
        EvenEpochError: A rank has no batch that it could repeat.

    Example:
        >>> target_of("drop", [3, 5, 4]), target_of("wrap", [3, 5, 4])
        (3, 5)
    """
    least, most = min(counts), max(counts)
    if least == 0 < most:
        if even != "drop":
            raise EvenEpochError(
                f'even="{even}": a rank has no batch at all to repeat, while others have some: use more '
                "shards, smaller shards, or fewer ranks"
            )
        warn(
            'even="drop": a rank has no batch at all, so no rank gets any: use more shards, smaller shards, '
            "or fewer ranks"
        )
    return least if even == "drop" else most
