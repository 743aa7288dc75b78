"""Epochs of equally many batches on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from mpwds.errors import EvenEpochError
from mpwds.loader.agreement import Agreement, Even
from mpwds.loader.header_counts import count_by_headers
from mpwds.loader.lengths import CountOf, LengthUnknown
from mpwds.loader.own_part import OwnPart
from mpwds.loader.ranks import TorchRanks, world_size
from mpwds.pipeline.context import Context
from mpwds.pipeline.repetitions import epoch_of_repetition
from mpwds.warn import warn

WINDOW = 4
"""Batches that ranks make sure of at once: a talk takes about as long as three threads take to wake up."""

MOST_AHEAD = WINDOW + 1
"""Batches that may be taken ahead of the training loop."""


class Plan(Protocol):
    """How it comes to be known how many batches all ranks deliver."""

    def grant(self, delivered: int) -> int:
        """How many more batches each rank delivers before this is called again; 0 ends the epoch.

        Args:
            delivered: Batches that were delivered.
        """
        ...


class Known:
    """Plan: the number is known.

    Args:
        target: Batches of an epoch.
    """

    def __init__(self, target: int) -> None:
        self._target = target

    def grant(self, delivered: int) -> int:
        return self._target - delivered


class Agreed:
    """Plan: the ranks talk.

    Before the first batch they tell each other how many they have. If one does not know, they talk again each
    time as many batches are delivered as all were sure of: each takes up to ``window`` batches ahead of the
    training loop, and says how many it has. To pad, it takes one more, to see whether the one before is the
    last.

    Args:
        part: This rank's batches.
        even: What a rank does when others have fewer batches, or more.
        agreement: How the ranks talk.
        count_own: Tells how many batches this rank has, or ``None``.
        window: The most batches to be sure of at once.
    """

    def __init__(
        self,
        part: OwnPart,
        even: Even,
        agreement: Agreement,
        count_own: Callable[[], int | None],
        window: int = WINDOW,
    ) -> None:
        self._part = part
        self._even = even
        self._agreement = agreement
        self._window = window
        self._count_own = count_own
        self._compared = False
        self._known: Known | None = None

    def grant(self, delivered: int) -> int:
        if not self._compared:
            self._compared = True
            self._compare_counts(delivered)
        if self._known is not None:
            return self._known.grant(delivered)
        ready = self._look_ahead()
        offers = self._agreement.batches(ready)
        if delivered == 0:
            return target_of(self._even, offers)
        return offers.least if self._even == "drop" else offers.most

    def _compare_counts(self, delivered: int) -> None:
        own = self._count_own()
        offers = self._agreement.counts(own)
        if own is not None and offers is not None:
            self._part.counted = max(0, own - delivered)
            self._known = Known(target_of(self._even, offers))

    def _look_ahead(self) -> int:
        """How many batches are ready. An error is told to the other ranks, which then raise one too."""
        try:
            return min(self._part.look_ahead(self._window + (self._even == "pad")), self._window)
        except Exception:
            with suppress(EvenEpochError):  # which says that this rank failed
                self._agreement.batches(0, failed=True)
            raise


class EvenIterator(Iterator[Any]):
    """The batches of an epoch, as many as all other ranks deliver.

    Args:
        part: This rank's batches.
        plan: How many batches all ranks deliver.
        delivered: Batches of the epoch that were delivered before, if it is gone on with.

    Attributes:
        delivered: Batches that were delivered.

    While iterating:
        EvenEpochError: A rank has no batch, is gone, failed, or was given other options; or this one has
            not as many batches as its dataset says.

    Example:
        >>> list(EvenIterator(OwnPart(lambda number: iter("ab"), "wrap"), Known(5)))
        ['a', 'b', 'a', 'b', 'a']
    """

    def __init__(self, part: OwnPart, plan: Plan, delivered: int = 0) -> None:
        self.delivered = delivered
        self._part = part
        self._plan = plan
        self._granted = 0
        self._running = True

    @property
    def ahead(self) -> int:
        """Batches that were taken out of this rank's part and are not delivered."""
        return self._part.ahead

    def __next__(self) -> Any:
        if not self._running:
            raise StopIteration
        try:
            if self._granted == 0:
                self._granted = self._plan.grant(self.delivered)
            if self._granted == 0:
                self._part.check_all_came()
                raise StopIteration
            batch = self._part.next()
        except BaseException:
            self._running = False
            self._part.close()
            raise
        self._granted -= 1
        self.delivered += 1
        return batch


class Evened(Protocol):
    """What is asked of a loader whose epochs are to be even; see ``MultiLoader``."""

    even: Even | None
    timeout: float | None
    seed: int | None


def evened(
    loader: Evened,
    epoch: int,
    start: Callable[[int], Iterator[Any]],
    count: CountOf,
    delivered: int = 0,
) -> Iterator[Any]:
    """An epoch of a loader, made even if there are several ranks and the loader says so.

    Args:
        loader: The loader.
        epoch: Number of the epoch.
        start: Begins an epoch of what is to be iterated: the loader, or stages behind it.
        count: Its number of batches.
        delivered: Batches of the epoch that were delivered before, if ``start`` goes on with it; as many on
            all ranks.

    Raises:
        EvenEpochError: The ranks have to talk and cannot, or one has no batch.
    """
    even = loader.even
    if even is None or not is_to_be_even(loader):
        return start(epoch)

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
        return EvenIterator(part, Known(target), delivered)
    timeout = None if loader.timeout is None else loader.timeout * MOST_AHEAD
    agreement = Agreement(ranks, even, epoch, timeout)
    part = OwnPart(begin, even)
    return EvenIterator(part, Agreed(part, even, agreement, lambda: count_by_headers(count, here)), delivered)


def is_to_be_even(loader: Evened) -> bool:
    """Whether a loader's epochs are made even: it says so, and there are several ranks."""
    return loader.even is not None and world_size() > 1


def even_length(even: Even | None, count: CountOf) -> int:
    """What ``len()`` of a loader returns: batches on this rank, or on all ranks if that is to be the same.

    Args:
        even: The loader's.
        count: Its number of batches.

    Raises:
        LengthUnknown: It cannot be known; the message says because of what.
    """
    here = Context.current()
    if even is None:
        return count(here)
    counts = [count(rank) for rank in all_ranks(here)]
    return min(counts) if even == "drop" else max(counts)


def all_ranks(here: Context) -> list[Context]:
    """The contexts of all ranks, from that of one."""
    return [replace(here, rank=rank) for rank in range(here.world_size)]


def target_of(even: Even, counts: Sequence[int]) -> int:
    """How many batches all ranks get.

    Args:
        even: ``"drop"``: as many as the rank that has the fewest; else as many as the one that has the most.
        counts: How many they have, or the least and the most of it.

    Raises:
        EvenEpochError: A rank has none, and so has nothing to repeat.

    Example:
        >>> target_of("drop", [3, 5, 4]), target_of("wrap", [3, 5, 4])
        (3, 5)
    """
    least, most = min(counts), max(counts)
    if least == 0 < most:
        if even != "drop":
            raise EvenEpochError(
                f'even="{even}": a rank has no batch at all, so there is nothing that it could repeat, while '
                "others have some: take more shards, or smaller ones, or fewer ranks"
            )
        warn(
            'even="drop": a rank has no batch at all, so no rank gets any: take more shards, or smaller '
            "ones, or fewer ranks"
        )
    return least if even == "drop" else most
