"""A worker of a server as its trainers see it: its batches are relayed, at their pace, exactly once."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from mpwds import nest
from mpwds.errors import WorkerDied
from mpwds.feed.wire import DataHeader, WorkerAssignment
from mpwds.loader.engine.epoch import MOST_DEATHS, died_too_often
from mpwds.loader.engine.local_worker import BatchReceiver, LocalWorker
from mpwds.loader.launching.launchers import Launcher
from mpwds.loader.messages import protocol
from mpwds.loader.messages.channel import Message, frame_of
from mpwds.loader.resume.progress import CarriedPositions
from mpwds.sharedmem.arena import EventFd
from mpwds.sharedmem.lease import CopiedBatches
from mpwds.stats.snapshot import NOTHING_COUNTED, CounterSnapshot

_BUNDLE_NBYTES = 64 << 10
"""Small batches that have piled up travel in one message, which costs as much as one of them would."""

_SMALL_BATCH = nest.pack(
    dict.fromkeys(
        ["kind", "generation", "sequence", "structure", "offsets", "samples", "nbytes"], protocol.BATCH
    )
)[: len(nest.pack({"kind": protocol.BATCH}))]
"""The beginning of the envelope of a batch that has no block and no state."""

_LARGE_WINDOW_NBYTES = 16 << 20
"""A trainer's window may be larger than this only as far as it holds no more batches than an arena."""


_FOR_ALL = 1 << 63  # in place of a batch's number: what ends a part is new to every trainer


class DataMessage(NamedTuple):
    """A data message for one trainer: its head, messages as the worker framed them, and arrays in parts."""

    client: bytes
    head: DataHeader
    frames: bytes
    parts: memoryview | None
    batches: int
    is_last: bool


@dataclass
class Subscriber:
    """One trainer of a slot: what it asked for last, what it was sent, and how much of that it has used."""

    start: dict[str, Any]  # its last command to start
    window: int  # bytes that it may have been sent and not used
    next: int  # the first batch that it was not sent
    number: int = 0  # of its next data message
    sent_nbytes: int = 0
    used_nbytes: int = 0
    begun: bool = False  # the worker runs for it; before that it waits for the others of its group
    done: bool = False  # it was sent the end, or stopped
    held_up_since: float | None = None  # others have waited for it since then

    @property
    def attempt(self) -> int:
        return int(self.start["attempt"])

    @property
    def outstanding(self) -> int:
        return self.sent_nbytes - self.used_nbytes

    @property
    def runs(self) -> bool:
        return self.begun and not self.done

    def has_room(self, nbytes: int, limit: int) -> bool:
        """True if it may be sent so many bytes. A trainer tells what it has used by half windows."""
        window = min(self.window, limit)
        return self.outstanding <= window // 2 or self.outstanding + nbytes <= window


class _Relaying(BatchReceiver):
    """The server's end of an arena; ``on_segment`` hears of a new segment that the trainer maps, too."""

    on_segment: Callable[[Message, int, EventFd], None] | None = None

    def map_segment(self, message: Message, descriptor: int) -> None:
        if self.on_segment is not None:
            self.on_segment(message, descriptor, self.bell)
        super().map_segment(message, descriptor)

    def peek(self, message: Message) -> bytes:
        """A copy of the memory of a batch's arrays."""
        block = message.fields.get("block")
        if block is None or self.arena is None:
            return bytes(message.payload)
        return bytes(self.arena.peek(block)[: message.fields["nbytes"]])


class _ServedWorker(LocalWorker):
    """A local worker of a server, whose frames may be passed on unread."""

    def __init__(self, index: int, launcher: Launcher, blocks: int) -> None:
        self.receiver = _Relaying(EventFd(), "numpy", blocks - 1, CopiedBatches(), warn=False)
        super().__init__(index, launcher, self.receiver)

    def receive_frames(self, prefix: bytes, most_nbytes: int) -> tuple[bytes, int]:
        return self._channel.receive_frames(prefix, most_nbytes)


@dataclass
class _EpochPart:
    """A part of an epoch that a worker makes: streams of the dataset, by default one."""

    epoch: int
    place: list[Any]
    of_streams: int | None  # streams of the job; None is one for each worker
    positions: CarriedPositions
    next: int  # the batch that comes next, counted through all streams of the part
    begun: bool = False  # its worker was told of it
    ended: bool = False
    deaths: Counter[int] = field(default_factory=Counter)  # by the batch that came next


@dataclass(eq=False)
class WorkerRelay:
    """A worker process that makes one part of an epoch, for one trainer or for each of a group.

    The worker starts with the first epoch and ends with the slot. If it dies, another one takes its place, at
    the last state that was relayed. A part begins when ``have_all_asked(epoch, trainers)`` says that none but
    these will ask for it, at the earliest of their positions, and each gets the batches from its own on.
    For a trainer that comes late, the worker goes back to that one's position; the others get no batch twice.

    ``hand_over(launch, segment, bell)`` passes descriptors to a trainer that maps the arena itself; without
    it, the trainer gets the arrays in parts. ``peeked`` gets a copy of the next batch that is relayed.
    ``number`` is the trainer's for it, and ``number_here`` the server's; ``before`` are the totals of those
    that had the latter earlier.
    """

    number: int
    number_here: int
    launcher: Launcher
    blocks: int
    have_all_asked: Callable[[int, Set[bytes]], bool]
    hand_over: Callable[[int, int, int], None] | None
    before: CounterSnapshot
    ended: float | None = None
    members: dict[bytes, Subscriber] = field(default_factory=dict)
    worker: _ServedWorker | None = None
    last_epoch: int = 0
    notices: deque[str] = field(default_factory=deque)
    peeked: Callable[[Message, bytes], None] | None = None
    _launches: int = 0
    _largest: int = 0  # bytes of a message
    _run: _EpochPart | None = None
    _pending: Message | None = None
    _absent: dict[bytes, float] = field(default_factory=dict)  # since when the others wait for whom
    _segments: list[bytes] = field(default_factory=list)
    _dead: CounterSnapshot = NOTHING_COUNTED
    _began: float = field(default_factory=time.monotonic)

    @property
    def epoch(self) -> int | None:
        """The epoch that its worker is in the middle of."""
        return None if self._run is None else self._run.epoch

    def snapshot(self) -> CounterSnapshot:
        """The counters of its workers, also of those that have died."""
        before, worker = self._dead, self.worker  # together: other threads ask, too
        return before if worker is None else before + worker.snapshot()

    def totals(self) -> CounterSnapshot:
        """Its counters, with those of relays that had its number before."""
        until = time.monotonic() if self.ended is None else self.ended
        assigned_ns = int((until - self._began) * 1e9)
        return self.before + replace(self.snapshot(), assigned_ns=assigned_ns)

    def start(self, client: bytes, start: dict[str, Any]) -> None:
        """A trainer asks for a part, in place of what it asked for before.

        Raises ``ValueError`` if it is another part than others of its group have asked for.
        """
        for other, member in self.members.items():
            if other != client and member.start["place"] != start["place"]:
                raise ValueError(
                    "the members of a group must have the same servers, workers, ranks and seed: worker "
                    f"{self.number} has the place {WorkerAssignment(*start['place'])} for one of them, and "
                    f"{WorkerAssignment(*member.start['place'])} for another"
                )
        first = sum(position.first for position in start["positions"].values())  # of all streams of the part
        self.members[client] = Subscriber(start, start["window"], first)
        self._stop_if_unwanted()
        self.begin_if_due()

    def stop(self, client: bytes, attempt: int) -> None:
        member = self.members.get(client)
        if member is not None and member.attempt == attempt:
            member.begun = member.done = True
            self._stop_if_unwanted()
            self.begin_if_due()

    def acknowledge(self, client: bytes, attempt: int, nbytes: int, window: int | None = None) -> None:
        """A trainer has used ``nbytes`` of the bytes that it was sent since its attempt began."""
        member = self.members.get(client)
        if member is not None and member.attempt == attempt and nbytes <= member.sent_nbytes:
            member.used_nbytes = max(member.used_nbytes, nbytes)
            member.window = member.window if window is None else window

    def leave(self, client: bytes) -> None:
        """A trainer is gone."""
        self.members.pop(client, None)
        self._stop_if_unwanted()
        self.begin_if_due()

    @property
    def listens(self) -> bool:
        """True if a message of the worker could be taken now."""
        return self._run is not None and not self._run.ended and self._pending is None

    def held_up_by(self, now: float, joined: Set[bytes]) -> dict[bytes, float]:
        """Those who joined the group and whom its others wait for, and for how many seconds."""
        members = self.members.values()
        awaited = self._run is None and any(not member.begun for member in members)
        if self._run is None:
            for member in members:
                is_late = awaited and member.begun
                member.held_up_since = (member.held_up_since or now) if is_late else None
        absent = joined - self.members.keys() if awaited else set()
        self._absent = {client: self._absent.get(client, now) for client in absent}
        since = {**self._absent, **{client: member.held_up_since for client, member in self.members.items()}}
        return {client: now - began for client, began in since.items() if began is not None}

    def relay(self) -> Iterator[DataMessage]:
        """Yields what the worker has sent and its clients have room for; never waits."""
        bundle: list[tuple[int, bytes]] = []
        nbytes = 0
        while (message := self._take()) is not None:
            run = self._run
            assert run is not None
            in_parts = "block" in message.fields and self.hand_over is None
            size = len(message.frame) + (message.fields["nbytes"] if in_parts else 0)
            if not self._have_room(nbytes + size, run.next):
                self._pending = message
                break
            bundle += [(run.next, segment) for segment in self._segments]
            self._segments.clear()
            first, frame = run.next, self._relayed(message, run)
            bundle.append((_FOR_ALL if run.ended else first, frame))
            nbytes += size
            if not in_parts and (following := self._following(run, nbytes)):
                bundle.append(following)
                nbytes += len(following[1])
            if in_parts or nbytes >= _BUNDLE_NBYTES or run.ended:
                parts = self._parts(message) if in_parts else None
                yield from self._to_members(bundle, run, parts)
                bundle, nbytes = [], 0
            if run.ended:
                self._run = None
                self.begin_if_due()
        if bundle and self._run is not None:
            yield from self._to_members(bundle, self._run, None)

    def end(self) -> _ServedWorker | None:
        """Ends the slot. Its worker, if there is one, was told to end; the caller waits for it."""
        self._run = self._pending = None
        self.ended = time.monotonic()
        return self._let_go()

    def _take(self) -> Message | None:
        if self._pending is not None:
            message, self._pending = self._pending, None
            return message
        if self._run is None:
            return None
        if self.worker is None or not self._run.begun:
            self._to_worker(self._run)
        assert self.worker is not None
        try:
            return self.worker.receive()
        except WorkerDied as death:
            end = self._restarted(death, self._run)
            if end is None:
                self._to_worker(self._run)
            return end

    def _relayed(self, message: Message, run: _EpochPart) -> bytes:
        """Counts a message; returns its frame, without what only this machine may read."""
        fields = message.fields
        stream = fields.get("stream", run.place[2])
        if fields["kind"] == protocol.BATCH:
            run.next += 1
            run.positions.count(stream, fields["sequence"], fields.get("state"))
            if self.peeked is not None and self.worker is not None:
                self.peeked(message, self.worker.receiver.peek(message))
                self.peeked = None
            return bytes(message.frame)
        run.ended = fields["kind"] == protocol.ERROR or run.positions.end(stream)
        return bytes(message.frame if fields["kind"] == protocol.END else _without_pickle(fields))

    def _following(self, run: _EpochPart, nbytes: int) -> tuple[int, bytes] | None:
        """The frames of small batches after a message, unread, if one trainer has room for all of them."""
        if len(self.members) > 1 or run.ended or run.of_streams is not None or self.worker is None:
            return None
        [member] = self.members.values()
        if member.next > run.next:  # it has some of them already
            return None
        first, most_nbytes = run.next, min(_BUNDLE_NBYTES, member.window - member.outstanding - nbytes)
        frames, batches = self.worker.receive_frames(_SMALL_BATCH, most_nbytes)
        if batches:
            run.next += batches
            run.positions.count(run.place[2], run.next - 1)
        return (first, frames) if frames else None

    def _parts(self, message: Message) -> memoryview:
        assert self.worker is not None
        block = self.worker.receiver.buffer(message)
        return memoryview(block).cast("B")[: message.fields["nbytes"]]

    def _to_members(
        self, bundle: list[tuple[int, bytes]], run: _EpochPart, parts: memoryview | None
    ) -> Iterator[DataMessage]:
        """A data message for each trainer, without the batches that it had before.

        ``bundle`` has frames, each with the number of its first batch.
        """
        for client, member in self.members.items():
            if not member.runs:
                continue
            frames = [frame for number, frame in bundle if number >= member.next]
            if frames:
                batches = max(0, run.next - max(member.next, bundle[0][0]))
                data = b"".join(frames)
                parts_nbytes = 0 if parts is None else parts.nbytes
                head = DataHeader(self.number, member.attempt, member.number, parts_nbytes)
                member.number += 1
                member.next = max(member.next, run.next)
                member.sent_nbytes += len(data) + parts_nbytes
                member.done = run.ended
                yield DataMessage(client, head, data, parts, batches, run.ended)

    def _have_room(self, nbytes: int, number: int) -> bool:
        """Whether all who are to get a batch of this number may be sent so many bytes."""
        self._largest = max(self._largest, nbytes)
        limit = max(_LARGE_WINDOW_NBYTES, self.blocks * self._largest)
        if len(self.members) == 1:
            member = next(iter(self.members.values()))
            return not member.runs or member.has_room(nbytes, limit)
        running = [member for member in self.members.values() if member.runs]
        full = [each for each in running if each.next <= number and not each.has_room(nbytes, limit)]
        for member in running:
            holds_up = member in full and len(full) < len(running)
            member.held_up_since = (member.held_up_since or time.monotonic()) if holds_up else None
        return not full

    def begin_if_due(self) -> None:
        """Begins the earliest epoch that is asked for, once nobody is in the middle of another one."""
        waiting = [member for member in self.members.values() if not member.begun]
        running = [member for member in self.members.values() if member.runs]
        epoch = min((member.start["epoch"] for member in waiting), default=0)
        # With those who have all of it: one that lost its end gets that again.
        asked = {client for client, member in self.members.items() if member.start["epoch"] >= epoch}
        if not waiting or not (running or self.have_all_asked(epoch, asked)):
            return
        if running and running[0].start["epoch"] != epoch:
            return
        due = [member for member in waiting if member.start["epoch"] == epoch]
        for member in due:
            member.begun = True
            member.held_up_since = None
        earliest = min(due, key=lambda member: member.next)
        if running and self._run is not None and earliest.next >= self._run.next:
            return
        start = earliest.start
        self._discard_pending()
        self.last_epoch = epoch
        positions = CarriedPositions(start["positions"])
        self._run = _EpochPart(epoch, start["place"], start["streams"], positions, earliest.next)

    def _to_worker(self, run: _EpochPart) -> None:
        """Has the worker make a part; starts the worker first if there is none. OSError if it cannot."""
        if self.worker is None:
            self._launches += 1
            self.worker = _ServedWorker(self.number, self.launcher, self.blocks)
            if self.hand_over is not None:
                self.worker.receiver.on_segment = self._on_segment
        self.worker.index = WorkerAssignment(*run.place).worker
        positions = run.positions.wanted()
        self.worker.start(run.epoch, positions, place=run.place, of_streams=run.of_streams)
        run.begun = True

    def _on_segment(self, message: Message, descriptor: int, bell: EventFd) -> None:
        assert self.hand_over is not None
        self.hand_over(self._launches, descriptor, bell.fileno())
        self._segments.append(bytes(frame_of({**message.fields, "launch": self._launches})))

    def _restarted(self, death: WorkerDied, run: _EpochPart) -> Message | None:
        """Lets go of a worker that has died; the message that ends the part if it died too often."""
        dead = self._let_go()
        if dead is not None:
            dead.release()
        run.deaths[run.next] += 1
        if run.deaths[run.next] >= MOST_DEATHS:
            described = protocol.describe_error(died_too_often(death, run.next))
            fields = {"kind": protocol.ERROR, "generation": 0, **described}
            return Message(fields, memoryview(b""), _without_pickle(fields))
        self._dead += CounterSnapshot(restarts=1)
        self.notices.append(f"{death}. A new process took its place: no batch is lost or delivered twice")
        return None

    def _let_go(self) -> _ServedWorker | None:
        snapshot, worker = self.snapshot(), self.worker
        self._dead, self.worker = snapshot, None
        if worker is not None:
            worker.disconnect()
        return worker

    def _stop_if_unwanted(self) -> None:
        if self._run is not None and not any(member.runs for member in self.members.values()):
            self._discard_pending()
            self._run = None
            if self.worker is not None:
                self.worker.stop()

    def _discard_pending(self) -> None:
        message, self._pending = self._pending, None
        if message is not None and self.worker is not None and message.fields["kind"] == protocol.BATCH:
            self.worker.discard(message)


def _without_pickle(fields: dict[str, Any]) -> memoryview:
    return frame_of({**fields, "exception": None})
