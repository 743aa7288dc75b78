"""How far an epoch has been delivered: the source of a loader's state, and where a new worker begins."""

from __future__ import annotations

import pickle
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgpack

from mpwds.errors import MpwdsError
from mpwds.warn import warn

NEWEST_ONLY = 1


class Position(NamedTuple):
    """Where a worker begins in an epoch: it makes batches ``at`` to ``first`` and drops them."""

    first: int = 0  # the number of the first batch that it sends
    state: bytes | None = None  # of its stream before batch ``at``, packed; None is the epoch's start
    at: int = 0


START = Position()


@dataclass(eq=False)
class WorkerProgress:
    """How far one worker is in an epoch."""

    delivered: int = 0  # batches of this epoch that the program got
    states: list[tuple[int, bytes]] = field(default_factory=list)  # packed, by the batches before
    stateless: str = ""  # why the stream has no state
    keeps: int = NEWEST_ONLY  # how many states to keep

    def __post_init__(self) -> None:
        # Batches that arrived, or came before the worker's position: fewer while some are made again.
        self.received = self.delivered

    def keep(self, state: bytes | str) -> None:
        """Keeps the packed state behind the last delivered batch, or the reason why there is none."""
        if isinstance(state, str):
            self.stateless = state
            return
        if self.keeps == NEWEST_ONLY:
            self.states.clear()
        self.states.append((self.delivered, state))
        if len(self.states) > self.keeps:
            numbers = [at for at, _ in self.states]

            def gap(index: int) -> float:
                """The gap that the state's removal leaves, relative to its age: the older, the fewer."""
                return (numbers[index + 1] - numbers[index - 1]) / (numbers[-1] - numbers[index - 1])

            del self.states[min(range(1, len(numbers) - 1), key=gap)]

    def position(self, first: int | None = None) -> Position:
        """Where a worker begins in order to send batch ``first``, by default the next one to deliver."""
        first = self.delivered if first is None else first
        for at, state in reversed(self.states):
            if at <= first:
                return Position(first, state, at)
        return Position(first)


@dataclass(eq=False)
class EpochProgress:
    """How far an epoch has been delivered."""

    epoch: int
    workers: list[WorkerProgress]
    turn: int = 0  # index of the worker whose batch is next, where workers take turns
    repeated: int = 0  # batches that the program got beyond those of the workers, to make the epoch even
    running: bool = False  # an iterator delivers it
    finished: bool = False  # it has been delivered to its end
    loaded: int = 0  # batches that were delivered before a state was loaded
    _ahead: deque[tuple[int, int, bytes | str | None]] | None = field(default=None, init=False)

    @classmethod
    def at_start(cls, epoch: int, workers: int) -> EpochProgress:
        return cls(epoch, [WorkerProgress() for _ in range(workers)])

    def finish(self) -> None:
        """The workers have no more batches. This finishes the epoch unless batches may be taken ahead."""
        self.finished = self._ahead is None
        if self.finished and self.loaded and self.delivered == self.loaded:
            warn_of_empty_epoch()

    def take_ahead(self) -> None:
        """Makes :meth:`hand_over` count batches, because steps behind the workers hold some."""
        self._ahead = deque()

    def count(self, worker: int, turn: int = 0, state: bytes | str | None = None) -> None:
        """Counts a batch of a worker, and its state if it sent one. Worker ``turn`` is next."""
        if self._ahead is None:
            self._count(worker, turn, state)
        else:
            self._ahead.append((worker, turn, state))

    def hand_over(self) -> None:
        """Counts the first batch that was taken ahead as delivered, or a repeated batch if there is none."""
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
        return sum(worker.delivered for worker in self.workers)

    @property
    def replayed(self) -> int:
        """Delivered batches that a resumed run has to recompute."""
        return sum(worker.delivered - worker.position().at for worker in self.workers)

    def positions(self) -> list[Position]:
        """Where the workers begin in order to continue this epoch."""
        return [worker.position(worker.received) for worker in self.workers]


def warn_of_empty_epoch() -> None:
    warn(
        "the epoch that load_state_dict continued had nothing left, so this iteration is empty. If your "
        "program counts it as an epoch, that one is lost: save the state after the loop has ended, where it "
        "is the start of the next epoch",
        UserWarning,
    )


def made_fewer(worker: int, made: int, delivered: int) -> MpwdsError:
    """The error for a dataset that ends before the position where it has to continue."""
    return MpwdsError(
        f"worker {worker} made {made} batches, {delivered} were delivered before: the dataset has changed, "
        "or gives other elements each time it runs, so the epoch cannot be continued"
    )


def pack_state(state: Any, *, exactly: bool = False) -> bytes:
    """Packs a state by msgpack, or by pickle if msgpack cannot hold it.

    msgpack makes lists of tuples. With ``exactly``, a state that holds tuples is pickled.
    """
    try:
        packed: bytes = msgpack.packb(state, strict_types=exactly)
    except (TypeError, ValueError, OverflowError):
        return b"p" + pickle.dumps(state)
    return b"m" + packed


def unpack_state(packed: bytes) -> Any:
    """The state that :func:`pack_state` packed, in this process or one of its workers."""
    if packed[:1] == b"p":
        return pickle.loads(packed[1:])
    return msgpack.unpackb(packed[1:], strict_map_key=False)
