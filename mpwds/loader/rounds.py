"""Even epochs of streams: whole rounds, in which each stream of the job gives one batch.

With ``streams=K``, batch n of the job comes from stream n mod K. So an epoch of whole rounds is even on any
number of ranks that divides K, with the same batches. ``"drop"`` ends before the first round that a stream
cannot serve. With ``"pad"`` and ``"wrap"``, streams go on after their end (``worker.elements``), and the
epoch ends before the first round that would hold repeats alone.

A rank knows that a round comes before it delivers the round's first batch: by the streams' lengths, if they
are known, or by batches taken ahead. To drop, it takes a whole round ahead. Otherwise it takes batches up to
the first that is no repeat, which is the next one except at the end. Several ranks agree on each round. A
round that had begun when a state was saved is finished without asking.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from mpwds.errors import EvenEpochError
from mpwds.loader.engine.epoch import NOT_YET, EpochIterator
from mpwds.loader.engine.options import Even
from mpwds.loader.even import WINDOW, EvenIterator, LengthConsensus, TorchRanks, target_of, world_size
from mpwds.loader.worker.elements import count_delivered
from mpwds.pipeline.context import Context
from mpwds.pipeline.stream import LengthUnknown


def in_rounds(
    batches: EpochIterator, even: Even, dataset: Any, streams: int, here: Context, timeout: float | None
) -> RoundsIterator:
    """The batches of an epoch that a rank's streams give in whole rounds, from where ``batches`` begin."""
    own = range(here.rank, streams, here.world_size)
    part = RankRounds(batches, even, own)
    rounds: int | None = None
    with suppress(LengthUnknown):
        rounds = rounds_of(even, dataset, streams, here)

    def left(delivered: int) -> int:
        """The number of batches that follow those delivered, as far as the ranks agree on them."""
        if rounds is not None:
            return rounds * len(own) - delivered
        into = delivered % len(own)
        return len(own) - into if into else agree(delivered) * len(own)

    def alone(delivered: int) -> int:
        ready = part.look_ahead(1)
        return ready if delivered else target_of(even, (ready, not part.is_empty), "stream")

    agree: Callable[[int], int] = alone
    if rounds is None and world_size() > 1:
        window = max(1, WINDOW // len(own))
        limit = None if timeout is None else timeout * window * (1 + len(own))
        epoch = batches.progress.epoch
        agree = LengthConsensus(
            TorchRanks(), lambda _: part.look_ahead(window), even, epoch, limit, window, "stream"
        )
    return RoundsIterator(part, left, batches.progress.delivered)


def rounds_of(even: Even, dataset: Any, streams: int, here: Context, exact: bool = True) -> int:
    """Counts the rounds of an epoch, or raises ``LengthUnknown``."""
    alike = here.alike_on_ranks()
    contexts = [replace(alike, worker=stream, workers=streams) for stream in range(streams)]
    counts = [count_delivered(dataset, [context], exact).elements for context in contexts]
    return target_of(even, counts, "stream")


def even_length(even: Even, dataset: Any, streams: int, here: Context) -> int:
    """The ``len()`` of a loader with streams whose epochs are even."""
    if dataset.given_length is not None:
        return int(dataset.given_length)
    return rounds_of(even, dataset, streams, here, exact=False) * (streams // here.world_size)


class RankRounds:
    """A rank's part of the rounds: the batches of its streams, in turn, some of them taken ahead."""

    def __init__(self, batches: EpochIterator, even: Even, own: range) -> None:
        self._batches: EpochIterator | None = batches
        self._even = even
        self._own = own
        self._taken = batches.progress.delivered
        self.is_empty = not self._taken  # no stream has given a batch
        self._ahead: deque[tuple[Any, bool]] = deque()  # with whether it is a repeat

    @property
    def closed(self) -> str:
        return "" if self._batches is None else self._batches.closed

    def look_ahead(self, rounds: int) -> int:
        """Counts those of the next ``rounds`` that this rank can serve, or has more than repeats for."""
        return next((number for number in range(rounds) if not self._has(number)), rounds)

    def next(self) -> Any:
        if not self._ahead and not self._take():
            raise EvenEpochError(
                f"stream {self._own[self._taken % len(self._own)]} ends after "
                f"{self._taken // len(self._own)} batches, but more were counted: the dataset has changed"
            )
        return self._ahead.popleft()[0]

    def next_now(self) -> Any:
        """As :meth:`next`, but ``NOT_YET`` if no batch has arrived."""
        if not self._ahead and self._batches is not None:
            with suppress(StopIteration):  # next() tells that batches are missing
                batch = self._batches.next_now()
                if batch is NOT_YET:
                    return NOT_YET
                self._keep(self._batches, batch)
        return self.next()

    def check_all_came(self) -> None:
        """After the last round of lengths that were counted: makes sure that no stream goes on."""
        if self._even != "drop" and self._has(0):
            turn, number = (self._taken - 1) % len(self._own), (self._taken - 1) // len(self._own)
            raise EvenEpochError(
                f"stream {self._own[turn]} has more batches than the {number} that were counted: the dataset "
                "has changed"
            )

    def close(self) -> None:
        self._batches = None
        self._ahead.clear()

    def _has(self, number: int) -> bool:
        begin, end = number * len(self._own), (number + 1) * len(self._own)
        if self._even == "drop":
            return self._holds(end)
        return any(self._holds(index + 1) and not self._ahead[index][1] for index in range(begin, end))

    def _holds(self, number: int) -> bool:
        """Takes batches ahead until there are ``number`` of them; false if there are fewer."""
        while len(self._ahead) < number and self._take():
            pass
        return len(self._ahead) >= number

    def _take(self) -> bool:
        """Takes the next batch ahead; false if the stream whose turn it is has none."""
        if self._batches is None:
            return False
        try:
            return self._keep(self._batches, next(self._batches))
        except StopIteration:
            return self._keep(self._batches, NOT_YET)

    def _keep(self, batches: EpochIterator, batch: Any) -> bool:
        turn, number = self._taken % len(self._own), self._taken // len(self._own)
        self.is_empty = self.is_empty and batch is NOT_YET
        if batch is NOT_YET or batches.place != (turn, number):
            if self._even != "drop" and not self.is_empty:
                raise EvenEpochError(
                    f'even="{self._even}": stream {self._own[turn]} has no batch to repeat: use more shards, '
                    "smaller shards, or fewer streams"
                )
            self._batches = None
            return False
        self._ahead.append((batch, batches.repeats))
        self._taken += 1
        return True


class RoundsIterator(EvenIterator):
    """The batches of a rank in whole rounds. A step that copies them to a device may take some ahead."""

    _part: RankRounds

    @property
    def closed(self) -> str:  # type: ignore[override]  # it is read alone
        return self._part.closed

    def next_now(self) -> Any:
        """``NOT_YET`` also if the ranks have to agree first."""
        return self._next(self._part.next_now) if self._running and self._granted else NOT_YET
