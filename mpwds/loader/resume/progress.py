"""The progress of an epoch: the source of a loader's state, and of the position where a new worker begins."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgpack

from mpwds.errors import MpwdsError
from mpwds.pipeline.context import Context
from mpwds.warn import warn

NEWEST_ONLY = 1

AfterEnd = Literal["", "pad", "wrap"]
"""What follows a stream's last batch: nothing, the same batch again, or another pass in another order."""


@dataclass(frozen=True)
class Position:
    """Start position of a stream. Its worker makes batches ``at`` to ``first - 1`` and discards them."""

    first: int = 0  # the number of the first batch that is sent
    state: bytes | None = None  # of the stream before batch ``at``, packed; None is the epoch's start
    at: int = 0
    delivered: int = 0  # batches before this one are sent again, before streams take turns
    after_end: AfterEnd = ""


START = Position()


class CarriedPositions:
    """The positions of the streams that one worker carries, as far as its messages have come.

    The keys of ``first`` are the streams in the order of their turns; its values are the next batches.
    """

    def __init__(self, positions: Mapping[int, Position]) -> None:
        self._positions = dict(positions)
        self.first = {stream: position.first for stream, position in positions.items()}

    def count(self, stream: int, sequence: int, state: object = None) -> None:
        """Counts a batch of a stream, with the packed state after it if it came with one."""
        first = self.first
        if len(first) > 1 and sequence >= self._positions[stream].delivered:
            del first[stream]  # its next turn is the last
        first[stream] = sequence + 1
        if isinstance(state, bytes):
            self._positions[stream] = replace(self._positions[stream], state=state, at=sequence + 1)

    def end(self, stream: int) -> bool:
        """A stream has ended; true if it was the last one."""
        del self.first[stream]
        return not self.first

    def wanted(self) -> dict[int, Position]:
        """The positions from which the worker would begin again, in the order of the streams' turns."""
        return {stream: replace(self._positions[stream], first=first) for stream, first in self.first.items()}


@dataclass(eq=False)
class StreamProgress:
    delivered: int = 0  # batches of this epoch that the program got
    states: list[tuple[int, bytes]] = field(default_factory=list)  # packed, by the batches before
    stateless: str = ""  # why the stream has no state
    total: int | None = None  # batches in the epoch, once the stream has ended
    before: int | None = None  # in the epoch before, which this rank has finished
    keeps: int = NEWEST_ONLY  # how many states to keep

    def __post_init__(self) -> None:
        # Batches that arrived, or came before the stream's position: fewer while some are made again.
        self.received = self.delivered

    @property
    def is_over(self) -> bool:
        """True if nothing is left to make: the stream has ended, and the program got all of it."""
        return self.total is not None and self.total == self.delivered == self.received

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
        """The position from which batch ``first`` is sent next, by default the next one to deliver."""
        first = self.delivered if first is None else first
        for at, state in reversed(self.states):
            if at <= first:
                return Position(first, state, at, self.delivered)
        return Position(first, delivered=self.delivered)

    def to_dict(self, packed: bool = False) -> dict[str, Any]:
        states = [[at, state if packed else unpack_state(state)] for at, state in self.states]
        known = {name: value for name in ("total", "before") if (value := vars(self)[name]) is not None}
        return {"delivered": self.delivered, "states": states, "stateless": self.stateless, **known}

    @classmethod
    def from_dict(cls, state: Any) -> StreamProgress:
        delivered, stateless = field_of(state, "delivered", int), field_of(state, "stateless", str)
        states = field_of(state, "states", list)
        packed = sorted((at, pack_state(unpacked, exactly=True)) for at, unpacked in states)
        total, before = (
            field_of(state, name, int) if name in state else None for name in ("total", "before")
        )
        return cls(delivered, packed, stateless, total, before)


@dataclass(eq=False)
class EpochProgress:
    epoch: int
    streams: list[StreamProgress]
    repeated: int = 0  # batches that the program got beyond those of the streams, to make the epoch even
    running: bool = False  # an iterator delivers it
    finished: bool = False  # it has been delivered to its end
    loaded: int = 0  # batches that were delivered before a state was loaded
    passed: int = 0  # batches to drop at the start, in the order in which they come
    after_end: AfterEnd = ""  # of each stream
    _ahead: deque[tuple[int, bytes | str | None]] | None = field(default=None, init=False)

    @classmethod
    def at_start(cls, epoch: int, streams: int) -> EpochProgress:
        return cls(epoch, [StreamProgress() for _ in range(streams)])

    def finish(self) -> None:
        """The workers have no more batches. This finishes the epoch unless batches may be taken ahead."""
        self.finished = self._ahead is None
        if self.finished and self.loaded and self.delivered <= self.loaded:
            self.loaded = 0  # to warn once
            warn_of_empty_epoch()

    @property
    def resumed(self) -> bool:
        return self.loaded > 0

    def take_ahead(self) -> None:
        """Makes :meth:`mark_delivered` count batches, because steps after the workers hold some."""
        self._ahead = deque()

    def count(self, stream: int, state: bytes | str | None = None) -> None:
        """Counts a batch of a stream, and the stream's state if it came with one."""
        if self._ahead is not None:
            self._ahead.append((stream, state))
            return
        progress = self.streams[stream]
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

    def state_dict(self, packed: bool = False) -> dict[str, Any]:
        """The progress as a dict that JSON and msgpack can hold, unless the states in it stay ``packed``."""
        return {
            "epoch": self.epoch,
            "delivered": self.delivered,
            "repeated": self.repeated,
            "streams": [stream.to_dict(packed) for stream in self.streams],
        }

    @classmethod
    def from_dict(cls, state: Any) -> EpochProgress:
        """Undoes :meth:`state_dict`; ValueError names a field that is wrong."""
        streams = field_of(state, "streams", list)
        epoch, repeated = field_of(state, "epoch", int), field_of(state, "repeated", int)
        return cls(epoch, list(map(StreamProgress.from_dict, streams)), repeated)

    @property
    def delivered(self) -> int:
        return sum(stream.delivered for stream in self.streams)

    @property
    def replayed(self) -> int:
        """Delivered batches that a resumed run has to recompute."""
        return sum(stream.delivered - stream.position().at for stream in self.streams if not stream.is_over)

    def turns(self) -> deque[int]:
        """The streams that are not over, in the order of their turns.

        Those that have not ended have delivered the same number, or one more if they had their turn in this
        round. So the first with the fewest is next.
        """
        live = [
            (stream.delivered, number)
            for number, stream in enumerate(self.streams)
            if stream.total is None or stream.delivered < stream.total
        ]
        turns = deque(range(len(self.streams)))
        turns.rotate(-min(live, default=(0, 0))[1])
        return deque(number for number in turns if not self.streams[number].is_over)

    def position(self, stream: int) -> Position:
        progress = self.streams[stream]
        position = replace(progress.position(progress.received), after_end=self.after_end)
        at = progress.delivered
        for number, state in self._ahead or ():
            at += number == stream
            if number == stream and isinstance(state, bytes) and at <= position.first:
                position = replace(position, state=state, at=at)
        return position


def own_streams(streams: int | None, workers: int, here: Context) -> range:
    """The numbers of the streams that a rank carries; by default, one for each worker.

    Raises ValueError if the ranks cannot share them equally, or if there are more workers than streams.
    """
    if streams is None:
        return range(max(workers, 1))
    if streams % here.world_size:
        raise ValueError(
            f"streams={streams} cannot be dealt to {here.world_size} ranks equally: use a number of streams "
            "that all numbers of ranks divide which the run may have, such as 96"
        )
    if workers > streams // here.world_size:
        raise ValueError(
            f"{workers} workers for {streams // here.world_size} streams of this rank (streams={streams}, "
            f"{here.world_size} ranks): use fewer workers, or begin a run with more streams"
        )
    return range(here.rank, streams, here.world_size)


def warn_of_empty_epoch() -> None:
    warn(
        "the epoch that load_state_dict continued had nothing left, so this iteration is empty. If your "
        "program counts it as an epoch, that one is lost: save the state after the loop has ended, where it "
        "is the start of the next epoch",
        UserWarning,
    )


def made_fewer(stream: str, made: int, delivered: int) -> MpwdsError:
    """The error for a dataset that ends before the position where it has to continue."""
    return MpwdsError(
        f"{stream} made {made} batches, {delivered} were delivered before: the dataset has changed, "
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
