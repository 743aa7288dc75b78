"""The progress of an epoch: the source of a loader's state, and of the position where a new worker begins."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack

from mpwds.errors import MpwdsError
from mpwds.warn import warn

NEWEST_ONLY = 1


@dataclass(frozen=True)
class Position:
    """Start position of a worker. The worker makes batches ``at`` to ``first - 1`` and discards them."""

    first: int = 0  # the number of the first batch that it sends
    state: bytes | None = None  # of its stream before batch ``at``, packed; None is the epoch's start
    at: int = 0


START = Position()


@dataclass(eq=False)
class WorkerProgress:
    delivered: int = 0  # batches of this epoch that the program got
    states: list[tuple[int, bytes]] = field(default_factory=list)  # packed, by the batches before
    stateless: str = ""  # why the stream has no state
    keeps: int = NEWEST_ONLY  # how many states to keep

    def __post_init__(self) -> None:
        # Batches that arrived, or came before the worker's position: fewer while some are made again.
        self.received = self.delivered

    def keep(self, state: bytes | str) -> None:
        """Keeps the packed state after the last delivered batch, or the reason why there is none."""
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
        """The position of a worker that sends batch ``first`` next, by default the next one to deliver."""
        first = self.delivered if first is None else first
        for at, state in reversed(self.states):
            if at <= first:
                return Position(first, state, at)
        return Position(first)

    def to_dict(self) -> dict[str, Any]:
        states = [[at, unpack_state(state)] for at, state in self.states]
        return {"delivered": self.delivered, "states": states, "stateless": self.stateless}

    @classmethod
    def from_dict(cls, state: Any) -> WorkerProgress:
        delivered, stateless = field_of(state, "delivered", int), field_of(state, "stateless", str)
        states = field_of(state, "states", list)
        packed = sorted((at, pack_state(unpacked, exactly=True)) for at, unpacked in states)
        return cls(delivered, packed, stateless)


@dataclass(eq=False)
class EpochProgress:
    """The progress of an epoch: what the program got of it."""

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
            self.loaded = 0  # to warn once
            warn_of_empty_epoch()

    def take_ahead(self) -> None:
        """Makes :meth:`mark_delivered` count batches, because steps after the workers hold some."""
        self._ahead = deque()

    def count(self, worker: int, turn: int = 0, state: bytes | str | None = None) -> None:
        """Counts a batch of a worker, and its state if it sent one. Worker ``turn`` is next."""
        if self._ahead is not None:
            self._ahead.append((worker, turn, state))
            return
        self.turn = turn
        progress = self.workers[worker]
        progress.delivered += 1
        if state is not None:
            progress.keep(state)

    def mark_delivered(self) -> None:
        """Counts the first batch that was taken ahead as delivered, or a repeated batch if there is none."""
        ahead, self._ahead = self._ahead, None
        if ahead:
            self.count(*ahead.popleft())
        else:
            self.repeated += 1
        self._ahead = ahead

    def state_dict(self) -> dict[str, Any]:
        """The progress as a dict that JSON and msgpack can hold."""
        return {
            "epoch": self.epoch,
            "delivered": self.delivered,
            "turn": self.turn,
            "repeated": self.repeated,
            "workers": [worker.to_dict() for worker in self.workers],
        }

    @classmethod
    def from_dict(cls, state: Any) -> EpochProgress:
        """Undoes :meth:`state_dict`; ValueError names a field that is wrong."""
        workers, turn = field_of(state, "workers", list), field_of(state, "turn", int)
        if turn >= max(len(workers), 1):
            raise wrong("turn", "the index of a worker", turn)
        epoch, repeated = field_of(state, "epoch", int), field_of(state, "repeated", int)
        return cls(epoch, list(map(WorkerProgress.from_dict, workers)), turn, repeated)

    @property
    def delivered(self) -> int:
        return sum(worker.delivered for worker in self.workers)

    @property
    def replayed(self) -> int:
        """Delivered batches that a resumed run has to recompute."""
        return sum(worker.delivered - worker.position().at for worker in self.workers)

    def positions(self) -> list[Position]:
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
    if packed[:1] == b"p":
        return pickle.loads(packed[1:])
    return msgpack.unpackb(packed[1:], strict_map_key=False)


def field_of(state: Any, name: str, kind: type) -> Any:
    """A field of a state. Raises ValueError if it is missing, of another type, or a negative number."""
    value = state.get(name) if isinstance(state, Mapping) else None
    if kind is int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise wrong(name, "a whole number, not negative", value)
    elif not isinstance(value, (list, tuple) if kind is list else kind):
        raise wrong(name, f"a {kind.__name__}", value)
    return value


def wrong(name: str, expected: str, value: Any) -> ValueError:
    return ValueError(
        f"a loader's state has {name}={value!r}, expected {expected}: it is not what state_dict() gave"
    )
