"""Epochs of equally many batches on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from mpwds.errors import EvenEpochError
from mpwds.loader.lengths import CountOf
from mpwds.loader.options import Even
from mpwds.loader.ranks.agreement import Agreement
from mpwds.loader.ranks.own_part import OwnPart
from mpwds.loader.ranks.ranks import TorchRanks, world_size
from mpwds.pipeline.context import Context
from mpwds.pipeline.counts import LengthUnknown
from mpwds.pipeline.repetitions import epoch_of_repetition
from mpwds.warn import warn

WINDOW = 4
"""Batches that ranks agree on at once: an agreement takes about as long as three threads take to wake up."""

MOST_AHEAD = WINDOW + 1
"""Batches that may be taken ahead of the training loop."""


class Plan(Protocol):
    """How a rank learns how many batches all ranks deliver."""

    def grant(self, delivered: int) -> int:
        """How many more batches each rank delivers before this is called again; 0 ends the epoch.

        Args:
            delivered: Batches that were delivered.
        """
        ...


class Known:
    """Plan: the number of batches is known.

    Args:
        target: Batches of an epoch.
    """

    def __init__(self, target: int) -> None:
        self._target = target

    def grant(self, delivered: int) -> int:
        return self._target - delivered


class Agreed:
    """Plan: the ranks agree, window by window.

    Each rank takes up to ``window`` batches ahead of the training loop and tells the others how many it has.
    They talk again when as many are delivered as all of them have. To pad, a rank takes one batch more, to
    see whether the one before is its last.

    Args:
        part: This rank's batches.
        even: What a rank does when others have fewer batches, or more.
        agreement: How the ranks talk.
        window: The most batches to agree on at once.
    """

    def __init__(self, part: OwnPart, even: Even, agreement: Agreement, window: int = WINDOW) -> None:
        self._part = part
        self._even = even
        self._agreement = agreement
        self._window = window

    def grant(self, delivered: int) -> int:
        ready = self._look_ahead()
        offers = self._agreement.batches(ready)
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


class EvenIterator(Iterator[Any]):
    """The batches of an epoch, as many as all other ranks deliver.

    Args:
        part: This rank's batches.
        plan: How many batches all ranks deliver.
        delivered: Batches of a resumed epoch that were delivered before.

    Attributes:
        delivered: Batches that were delivered.

    While iterating:
        EvenEpochError: A rank has no batch, is gone, failed, or was given other options; or this rank has
            another number of batches than its dataset says.

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
        """Batches that were taken from this rank's part and are not delivered yet."""
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
    """The attributes of a loader that even epochs depend on; see ``MultiLoader``."""

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
    """Begins an epoch of a loader; makes it even if there are several ranks and the loader asks for that.

    Args:
        loader: The loader.
        epoch: Number of the epoch.
        start: Begins an epoch of the loader, or of the stages behind it.
        count: Counts its batches.
        delivered: Batches of a resumed epoch that were delivered before; the same number on all ranks.

    Raises:
        EvenEpochError: The ranks have to agree and cannot, or one of them has no batch.
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
    part = OwnPart(begin, even)
    return EvenIterator(part, Agreed(part, even, Agreement(ranks, even, epoch, timeout)), delivered)


def is_to_be_even(loader: Evened) -> bool:
    """Whether a loader's epochs are made even: the loader asks for it, and there are several ranks."""
    return loader.even is not None and world_size() > 1


def even_length(even: Even | None, count: CountOf) -> int:
    """Returns the ``len()`` of a loader: batches on this rank, or on every rank if epochs are even.

    Args:
        even: The loader's.
        count: Counts its batches.

    Raises:
        LengthUnknown: The number is not known; the message says why.
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
    """How many batches every rank gets.

    Args:
        even: With ``"drop"`` the smallest of ``counts``, otherwise the largest.
        counts: How many batches the ranks have; the smallest and the largest number are enough.

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
                f'even="{even}": a rank has no batch at all, so there is nothing that it could repeat, while '
                "others have some: take more shards, or smaller ones, or fewer ranks"
            )
        warn(
            'even="drop": a rank has no batch at all, so no rank gets any: take more shards, or smaller '
            "ones, or fewer ranks"
        )
    return least if even == "drop" else most
