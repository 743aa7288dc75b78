"""A worker of a server, as the trainer's epochs use it."""

from __future__ import annotations

import builtins
import contextlib
import itertools
import os
import select
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mpwds import errors, interrupts
from mpwds.errors import EnvelopeError, MpwdsError, ServerLost, WorkerDied, WorkerTimeout
from mpwds.feed import wire
from mpwds.feed.client.connection import ReceivedMessage, ServerConnection, StartAttempt
from mpwds.feed.client.connections import SAY_EVERY_S, ServerConnections
from mpwds.loader.engine.epoch import MOST_DEATHS
from mpwds.loader.engine.local_worker import BatchReceiver, Output, batch_of
from mpwds.loader.engine.worker_handle import WorkerHandle, WorkerLost
from mpwds.loader.messages import protocol
from mpwds.loader.messages.channel import LENGTHS, Message
from mpwds.loader.messages.protocol import with_cause
from mpwds.loader.resume.progress import START, CarriedPositions, Position
from mpwds.nest import unpack
from mpwds.pipeline.error_context import add_note
from mpwds.sharedmem.arena import EventFd
from mpwds.sharedmem.lease import LeasedArena
from mpwds.stats.snapshot import NOTHING_COUNTED, CounterSnapshot
from mpwds.warn import warn

_LEAST_WINDOW = 1 << 20
_attempts = itertools.count(1)


@dataclass(eq=False)
class RemoteWorker(WorkerHandle):
    """A worker on a server.

    If its server, or a message, is lost, the worker starts again at the first batch that has not arrived: on
    the same server when that is back, or on another one (``on_server_loss="move"``). If it carries streams of
    a job, others take those over instead.
    """

    index: int
    assignment: wire.WorkerAssignment
    streams: int | None  # of the job; None is one for each worker
    servers: ServerConnections
    home: ServerConnection
    home_slot: int
    output: Output
    make_receiver: Callable[..., BatchReceiver]
    _epoch: int = 0
    _runs: bool = False
    _positions: CarriedPositions = field(default_factory=lambda: CarriedPositions({}))
    _arrays: Any = None
    _largest_nbytes: int = 0  # of a batch
    _window: int = _LEAST_WINDOW
    _acknowledge_at: int = 0  # bytes used
    _earlier: CounterSnapshot = NOTHING_COUNTED  # of other slots
    _losses: tuple[int, int] = (0, 0)  # how often in a row before which batch

    def __post_init__(self) -> None:
        self._connection = self.home
        self._queue = self.home.queue(self.home_slot)
        self._arrival = ReceivedMessage(0, 0, b"", None)
        self._frames = memoryview(b"")

    @property
    def pid(self) -> int:
        """The process id on the server; 0 before it is known."""
        return self._queue.counters.pid

    @property
    def is_available(self) -> bool:
        """True if its server is up, or is to be waited for."""
        return self._connection.is_up or self.servers.on_loss != "move"

    @property
    def place(self) -> tuple[ServerConnection, int]:
        """The server that it is on, and its slot there."""
        return self._connection, self._queue.slot

    def move_to(self, connection: ServerConnection, slot: int) -> None:
        """Makes it a worker of another server, for good. It starts there on what it has not delivered."""
        self._frames, self._arrays = memoryview(b""), None
        self.home, self.home_slot = connection, slot
        self._change_to(connection, slot)
        self._queue.attempt.broken = True

    def start(self, epoch: int, positions: Mapping[int, Position]) -> None:
        self._runs = False
        while self._has_frames():  # of an epoch that was left
            self._next_message()
        self._epoch, self._runs = epoch, True
        self._positions = CarriedPositions(positions)
        self._losses = (0, 0)
        self.servers.epoch = epoch
        if self._connection is not self.home and self.home.is_up:
            self._change_to(self.home, self.home_slot)
        self._send_start()

    def stop(self) -> None:
        if self._runs:
            self._runs = False
            queue = self._queue
            if queue.attempt.broken:  # its server has ended, or knows nothing of it
                return
            self.servers.send(self._connection, wire.STOP, slot=queue.slot, attempt=queue.attempt.number)

    def register(self, poller: select.poll, *, receives: bool) -> None:
        if receives:
            queue = self._queue
            queue.bell.clear()
            queue.awaited = True
            if queue.messages or (queue.attempt.broken and self._connection.is_up):
                queue.bell.ring()
            poller.register(queue.bell, select.POLLIN)

    def receive(self) -> Message | None:
        interrupts.raise_deferred()
        self.servers.show_notices()
        while self._has_frames():
            message = self._next_message()
            if message is not None:
                return message
        if self._queue.failure is not None:
            raise self._queue.failure
        is_broken = self._queue.attempt.broken or not self._connection.is_up
        if self._runs and is_broken and not self._recovered():
            self._wait_for_server()
        if self.arena is not None:
            self.arena.reclaim()
        return None

    def _has_frames(self) -> bool:
        """True if there are frames to read; takes those of the next arrival if there are none left."""
        while not self._frames and self._queue.messages:
            self._arrival = self._queue.messages.popleft()
            if not self._is_outdated:
                self._frames, self._arrays = memoryview(self._arrival.frames), self._arrival.arrays
        return bool(self._frames)

    def batch(self, message: Message) -> Any:
        try:
            if "block" not in message.fields:
                arrays = bytearray(message.payload)
            elif self._arrays is not None:
                arrays, self._arrays = self._arrays, None
            else:
                assert self._queue.receiver is not None
                arrays = self._queue.receiver.buffer(message)
            return batch_of(message.fields, arrays, self.output, allow_pickle=False)
        except (TypeError, ValueError, MpwdsError) as error:
            raise MpwdsError(f"{self._named} sent a batch that cannot be decoded: {error}") from error

    def discard(self, message: Message) -> None:
        arrays, self._arrays = self._arrays, None
        if arrays is None and self._queue.receiver is not None:
            self._queue.receiver.discard(message)

    @property
    def arena(self) -> LeasedArena | None:
        return None if self._queue.receiver is None else self._queue.receiver.arena

    def error(self, message: Message) -> BaseException:
        error = _revived(message.fields, f"{self._named} (pid {self.pid})")
        if isinstance(error, WorkerDied):
            error.worker, error.pid = self.index, self.pid
        return error

    def timed_out(self, timeout_s: float) -> WorkerTimeout:
        state = "" if self._connection.is_up else f", which is lost ({self._connection.why})"
        return WorkerTimeout(
            f"{self._named}{state} delivered nothing for {timeout_s:g} s: raise timeout= if a batch may take "
            "that long, or see what its server says (`mpwds monitor`)",
            worker=self.index,
            pid=self.pid,
        )

    def snapshot(self) -> CounterSnapshot:
        since, counters = self._connection.lost_since, self._earlier + self._queue.counters
        if not self._runs and self._hands_over:  # nobody waits for it
            since = None
        lost_s = 0.0 if since is None else time.monotonic() - since
        return replace(counters, server=self._connection.url, lost_s=lost_s)

    def disconnect(self) -> None:
        self.stop()

    @property
    def _named(self) -> str:
        return f"worker {self.index} on {self._connection.url}"

    def _send_start(self) -> None:
        queue, connection = self._queue, self._connection
        # The thread may be about to send the next ping before this command.
        attempt = queue.attempt = StartAttempt(next(_attempts), connection.ping + 2)
        self._set_window()
        if not connection.is_up:
            attempt.broken = True
            return
        positions = self._positions.wanted()
        own = START if self.streams is not None else positions[self.index]
        self.servers.send(
            connection,
            wire.START,
            slot=queue.slot,
            attempt=attempt.number,
            epoch=self._epoch,
            place=list(self.assignment),
            window=self._window,
            shared_memory=connection.fd_receiver is not None,
            streams=self.streams,
            positions=None if self.streams is None else wire.pack_positions(positions),
            first=own.first,
            state=own.state,
            at=own.at,
        )

    def _set_window(self) -> None:
        """The window of bytes that the server is told next; half of it used, the server hears of that."""
        has = self._connection.definition.get("blocks", 1)
        batches = min(self.servers.options.prefetch, has)  # it has no more on the way
        self._window = max(_LEAST_WINDOW, batches * self._largest_nbytes)
        self._queue.window = max(self._queue.window, self._window)
        self._acknowledge_at = self._queue.attempt.used_nbytes + self._window // 2

    def _next_message(self) -> Message | None:
        """The next message of those that arrived together; ``None`` if it is not for the epoch."""
        try:
            envelope_nbytes, payload_nbytes = LENGTHS.unpack_from(self._frames)
            end = LENGTHS.size + envelope_nbytes
            frame = self._frames[: end + payload_nbytes]
            if len(frame) != end + payload_nbytes:
                raise EnvelopeError("a message is cut off")
            self._frames = self._frames[len(frame) :]
            fields = unpack(frame[LENGTHS.size : end])
            kind = fields["kind"]
            if kind != protocol.BATCH:
                fields = wire.printed(wire.checked(fields, wire.WORKER_MESSAGES))
            message = Message(fields, frame[end:], frame)
            if kind == protocol.BATCH:
                self._check(fields)
            elif kind == protocol.SEGMENT:
                self._map_segment(message)
        except (MpwdsError, KeyError, TypeError, ValueError, OSError, struct.error) as error:
            if self._is_outdated:  # the server was lost just now, and its descriptors with it
                self._frames = memoryview(b"")
                return None
            raise MpwdsError(f"{self._named} sent a damaged message: {error}") from error
        has_parts = "block" in fields and self._arrays is not None
        nbytes = len(frame) + (fields["nbytes"] if has_parts else 0)
        is_old = self._arrival.attempt != self._queue.attempt.number
        if is_old or kind == protocol.SEGMENT or not self._runs:
            if kind == protocol.BATCH:
                self.discard(message)
            if not is_old:
                self._use(nbytes)
            return None
        if kind == protocol.BATCH:
            if fields["nbytes"] > self.servers.options.max_batch_bytes:  # in shared memory
                self.discard(message)
                raise MpwdsError(self._connection.too_large(fields["nbytes"]))
            self._positions.count(self._stream_of(fields), fields["sequence"], fields.get("state"))
        else:
            self._runs = kind == protocol.END and not self._positions.end(self._stream_of(fields))
        self._use(nbytes)
        return message

    @property
    def _first(self) -> int:
        """The batch that comes next, counted through all of its streams."""
        return sum(self._positions.first.values())

    def _stream_of(self, fields: dict[str, Any]) -> int:
        """The stream of a batch or an end: by default, the one of the worker's own number."""
        stream = fields.get("stream", self.index)
        if type(stream) is not int or stream not in self._positions.first:
            raise MpwdsError(f"{self._named} sent what is of no stream that it carries: {stream!r:.50}")
        return stream

    @property
    def _is_outdated(self) -> bool:
        """True if the last arrival is of a session of the server that has ended, and with it its memory."""
        return self._arrival.session != self._connection.session

    def _check(self, fields: dict[str, Any]) -> None:
        """Checks the fields of a batch that the trainer relies on. Decoding checks arrays and structure."""
        numbers = [fields["sequence"], fields["samples"], fields["nbytes"], *fields["offsets"]]
        if not (set(map(type, numbers)) == {int} and min(numbers) >= 0):
            raise EnvelopeError("a number of a batch is not a whole number")
        if "kinds" in fields or "apart" in fields:
            raise EnvelopeError("a batch of a DataLoader")
        state = fields.get("state")
        if not (state is None or type(state) is str or (type(state) is bytes and state[:1] == b"m")):
            raise EnvelopeError("a state that is not msgpack: pickles are not accepted")
        block = fields.get("block")
        if block is not None and self._arrays is None:
            receiver = self._queue.receiver
            if receiver is None or type(block) is not int or not 0 <= block < receiver.keep + 1:
                raise EnvelopeError(f"a batch in block {block!r} of memory that is not mapped")

    def _use(self, nbytes: int) -> None:
        """Counts the bytes of a message as used, and tells the server when they are half of the window."""
        attempt = self._queue.attempt
        attempt.used_nbytes += nbytes
        if nbytes > self._largest_nbytes or attempt.used_nbytes >= self._acknowledge_at:
            self._largest_nbytes = max(self._largest_nbytes, nbytes)
            self._set_window()
            self.servers.send(
                self._connection,
                wire.ACK,
                slot=self._queue.slot,
                attempt=attempt.number,
                nbytes=attempt.used_nbytes,
                window=self._window,
            )

    def _map_segment(self, message: Message) -> None:
        """Maps the shared memory of the worker, which is on this machine."""
        queue, fd_receiver, launch = self._queue, self._connection.fd_receiver, message.fields["launch"]
        if fd_receiver is None:
            raise EnvelopeError("shared memory of another machine")
        segment, bell = fd_receiver.take(queue.slot, launch)
        process = self._arrival.session, launch
        if queue.receiver is not None and queue.mapped == process:
            os.close(bell)
        else:
            if queue.receiver is not None:
                queue.receiver.close()
            queue.receiver = self.make_receiver(EventFd(bell), keep=message.fields["blocks"] - 1)
            queue.mapped = process
        queue.receiver.map_segment(message, segment)

    def _recovered(self) -> bool:
        """Starts the worker again if a server is there for it."""
        if not self._connection.is_up and not self._moved():
            return False
        losses, before = self._losses
        self._losses = (losses + 1 if before == self._first else 1, self._first)
        if self._losses[0] > MOST_DEATHS * 3:
            raise MpwdsError(
                f"messages of {self._named} were lost {self._losses[0]} times in a row before batch "
                f"{self._first} of the epoch: see its log"
            )
        self._send_start()
        return True

    def _moved(self) -> bool:
        """Gives the worker's part to another server, if that is wanted and one is there.

        Raises ``WorkerLost`` if other workers are to have it.
        """
        hands_over = self._hands_over
        if self._connection.refused and not hands_over:
            raise MpwdsError(self._connection.refused)
        if self.servers.on_loss == "raise":
            raise ServerLost(
                f"{self._connection.loss} in the middle of an epoch: continue "
                'from the last state_dict(), or use on_server_loss="wait" or "move"'
            )
        others = [connection for connection in self.servers.connections if connection.is_up]
        if self.servers.on_loss != "move" or not (others or (hands_over and self.servers.options.local)):
            return False
        if hands_over:
            raise WorkerLost(self._connection.loss)
        # By its number alone, so that all members of a group choose the same server and slot.
        new = others[self.index % len(others)]
        warn(
            f"{self._connection.loss}: {new.url} takes over the part of "
            f"worker {self.index} from batch {self._first} on, so no batch is lost or delivered twice"
        )
        self._connection.warned = True
        self._change_to(new, (new.workers or 0) + self.index)
        return True

    @property
    def _hands_over(self) -> bool:
        """True if other workers carry its streams while its server is lost."""
        return self.streams is not None and self.servers.on_loss == "move"

    def _change_to(self, connection: ServerConnection, slot: int) -> None:
        so_far = self._earlier + self._queue.counters
        self._connection, self._queue = connection, connection.queue(slot)
        self._earlier = so_far - self._queue.counters

    def _wait_for_server(self) -> None:
        connection, limit = self._connection, self.servers.options.server_timeout
        lost_s = 0.0 if connection.lost_since is None else time.monotonic() - connection.lost_since
        if not connection.warned or lost_s > connection.say_after_s:
            still = f"still waiting for the server {connection.url} ({connection.why}), for {lost_s:.0f} s"
            within = "" if limit is None else f", for up to {limit:g} s (server_timeout)"
            warn(still if connection.warned else f"{connection.loss}: waiting for it to come back{within}")
            connection.warned, connection.say_after_s = True, lost_s + SAY_EVERY_S
        if limit is not None and lost_s > limit:
            raise ServerLost(
                f"{connection.loss}, and did not come back within {limit:g} s (server_timeout): start it "
                'again, or have others do its part by on_server_loss="move"'
            )


def _revived(fields: dict[str, Any], where: str) -> BaseException:
    """The exception that an ``error`` message describes. Nothing is unpickled: the server is not trusted.

    Python's exceptions and those of this package keep their type if their arguments are plain. Others become
    an :class:`MpwdsError` with the same text.
    """
    name = str(fields["type"])
    kind: Any = getattr(builtins, name, None) or getattr(errors, name, None)
    error: BaseException = MpwdsError(fields["summary"])
    is_error = isinstance(kind, type) and issubclass(kind, Exception)
    if is_error and not issubclass(kind, StopIteration):  # which would end the epoch
        with contextlib.suppress(Exception):  # it takes other arguments
            error = kind(*fields["arguments"])
    for note in fields["notes"]:
        add_note(error, note)
    return with_cause(error, fields, where)
