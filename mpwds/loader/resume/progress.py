"""How far an epoch is delivered: what a loader's state holds, and what a new worker begins from."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from mpwds.warn import warn

NEWEST_ONLY = 1


class Position(NamedTuple):
    """Where a worker begins in an epoch.

    Args:
        first: Number of the first batch that it sends; it makes none of those before for the trainer.
        state: State of its stream, packed; ``None`` is the epoch's start.
        at: Batches that come before that state, at most ``first``. The worker makes those from ``at`` to
            ``first`` and drops them.
    """

    first: int = 0
    state: bytes | None = None
    at: int = 0


START = Position()


class WorkerProgress:
    """What one worker's batches have come to.

    Args:
        delivered: Batches of this epoch that the consumer got; also an attribute.
        states: States of the worker's stream, packed, and the numbers of batches before them, ascending.
        stateless: Why the stream has no state, if that is so.

    Attributes:
        received: Batches that arrived, or that the worker does not send because of where it began. Below
            ``delivered`` while batches that were delivered before are made again.
        keeps: How many states to keep.

    Example:
        >>> progress = WorkerProgress(delivered=7, states=[(3, b"a"), (6, b"b")])
        >>> progress.position(), progress.position(5).at, progress.position(2).state
        (Position(first=7, state=b'b', at=6), 3, None)
    """

    def __init__(
        self, delivered: int = 0, states: Sequence[tuple[int, bytes]] = (), stateless: str = ""
    ) -> None:
        self.delivered = self.received = delivered
        self.states = list(states)
        self.stateless = stateless
        self.keeps = NEWEST_ONLY

    def keep(self, state: bytes | str) -> None:
        """Keeps a state; of the older ones, fewer and fewer.

        Args:
            state: The stream's state behind the last batch that was delivered, packed; or why there is none.
        """
        if isinstance(state, str):
            self.stateless = state
            return
        if self.keeps == NEWEST_ONLY:
            self.states.clear()
        self.states.append((self.delivered, state))
        if len(self.states) > self.keeps:
            del self.states[self._least_missed()]

    def _least_missed(self) -> int:
        """The state without which the gap is smallest, as measured by how long ago it is."""
        numbers = [at for at, _ in self.states]

        def gap(index: int) -> float:
            return (numbers[index + 1] - numbers[index - 1]) / (numbers[-1] - numbers[index - 1])

        return min(range(1, len(numbers) - 1), key=gap)

    def position(self, first: int | None = None) -> Position:
        """Where a worker begins that is to send batch ``first``: by default the next one to be delivered."""
        first = self.delivered if first is None else first
        at, state = max(
            ((at, state) for at, state in self.states if at <= first),
            default=(0, None),
            key=lambda kept: kept[0],
        )
        return Position(first, state, at)


class EpochProgress:
    """How far an epoch is delivered.

    Args:
        epoch: Its number.
        workers: The progress of each worker.
        turn: Index of the worker whose batch is next, where workers take turns.
        repeated: Batches that the consumer got beyond those of the workers, to make the epoch even.

    Attributes:
        running: An iterator delivers it.
        finished: It is delivered to its end.
        loaded: Batches that were delivered before a state was loaded.

    Example:
        >>> progress = EpochProgress.at_start(0, workers=1)
        >>> progress.take_ahead()
        >>> progress.count(0), progress.count(0), progress.hand_over()
        (None, None, None)
        >>> progress.delivered
        1
    """

    def __init__(
        self, epoch: int, workers: Sequence[WorkerProgress], turn: int = 0, repeated: int = 0
    ) -> None:
        self.epoch = epoch
        self.workers = list(workers)
        self.turn = turn
        self.repeated = repeated
        self.running = False
        self.finished = False
        self.loaded = 0
        self._ahead: deque[tuple[int, int, bytes | str | None]] | None = None

    def finish(self) -> None:
        """The workers have no more batches. That finishes the epoch, if none can have been taken ahead."""
        self.finished = self._ahead is None
        if self.finished and self.loaded and self.delivered == self.loaded:
            warn_of_empty_epoch()

    @classmethod
    def at_start(cls, epoch: int, workers: int) -> EpochProgress:
        """Nothing is delivered of an epoch."""
        return cls(epoch, [WorkerProgress() for _ in range(workers)])

    def take_ahead(self) -> None:
        """From now on :meth:`hand_over` counts batches, because steps behind the workers hold some."""
        self._ahead = deque()

    def count(self, worker: int, turn: int = 0, state: bytes | str | None = None) -> None:
        """Counts a batch of a worker as delivered, or as taken ahead.

        Args:
            worker: The worker's index.
            turn: Index of the worker whose batch is next.
            state: The worker's behind it, if it sent one: see :meth:`WorkerProgress.keep`.
        """
        if self._ahead is None:
            self._count(worker, turn, state)
        else:
            self._ahead.append((worker, turn, state))

    def hand_over(self) -> None:
        """Counts the first batch that was taken ahead as delivered; without one, counts a repeated batch."""
        if self._ahead:
            self._count(*self._ahead.popleft())
        else:
            self.repeated += 1

    def _count(self, worker: int, turn: int, state: bytes | str | None) -> None:
        self.turn = turn
        progress = self.workers[worker]
        progress.delivered += 1
        if state is not None:
            progress.keep(state)

    @property
    def delivered(self) -> int:
        """Batches of the workers that the consumer got."""
        return sum(worker.delivered for worker in self.workers)

    @property
    def replayed(self) -> int:
        """Delivered batches that a resumed run has to make again."""
        return sum(worker.delivered - worker.position().at for worker in self.workers)

    def positions(self) -> list[Position]:
        """Where the workers begin that continue this epoch."""
        return [worker.position(worker.received) for worker in self.workers]


def warn_of_empty_epoch() -> None:
    """Warns that nothing was left of an epoch that was continued."""
    warn(
        "the epoch that load_state_dict continued had nothing left, so this iteration is empty. Where it "
        "counts as an epoch of its own, that one is lost: a state that is saved when the loop has ended is "
        "the start of the next",
        UserWarning,
    )


def pack_state(state: Any) -> bytes:
    """A state as one value of a message, by msgpack, or by pickle where that cannot hold it.

    Example:
        >>> unpack_state(pack_state({"held": [(3, 512)]})), unpack_state(pack_state({1j}))
        ({'held': [[3, 512]]}, {1j})
    """
    try:
        packed: bytes = msgpack.packb(state)
    except (TypeError, ValueError, OverflowError):
        return b"p" + pickle.dumps(state)
    return b"m" + packed


def unpack_state(packed: bytes) -> Any:
    """The state that :func:`pack_state` packed in this process or one of its workers."""
    if packed[:1] == b"p":
        return pickle.loads(packed[1:])
    return msgpack.unpackb(packed[1:], strict_map_key=False)
