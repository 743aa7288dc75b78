"""A worker of a server, as the trainer's epochs use it."""

from __future__ import annotations

import builtins
import contextlib
import itertools
import os
import select
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from mpwds import errors
from mpwds.errors import EnvelopeError, MpwdsError, ServerLost, WorkerDied, WorkerTimeout
from mpwds.feed import wire
from mpwds.feed.trainer.links import Arrival, Attempt, Link
from mpwds.feed.trainer.servers import SAY_EVERY_S, Servers
from mpwds.feed.wire import Place, printed
from mpwds.loader.engine.epoch import MOST_DEATHS
from mpwds.loader.engine.local_worker import BatchReceiver, Output, batch_of
from mpwds.loader.messages import protocol
from mpwds.loader.messages.channel import LENGTHS, Message
from mpwds.loader.messages.protocol import with_cause
from mpwds.loader.resume.progress import START, Position
from mpwds.nest import unpack
from mpwds.pipeline.error_context import add_note
from mpwds.sharedmem import interrupts
from mpwds.sharedmem.arena import MOST_BLOCKS
from mpwds.sharedmem.bell import Bell
from mpwds.stats.snapshot import NOTHING_COUNTED, CounterSnapshot
from mpwds.warn import warn

OnServerLoss = Literal["wait", "move", "raise"]

_LEAST_WINDOW = 1 << 20
_INT = {int}
_attempts = itertools.count(1)


class RemoteWorker:
    """A worker on a server; implements ``WorkerHandle``, which documents the methods.

    If its server, or a message, is lost, the worker starts again at the first batch that has not arrived: on
    the same server when that is back, or on another one (``on_server_loss="move"``).
    """

    is_ready = True  # the server has its dataset

    def __init__(
        self,
        index: int,
        place: Place,
        servers: Servers,
        link: Link,
        slot: int,
        *,
        output: Output,
        prefetch: int,
        on_server_loss: OnServerLoss,
        server_timeout: float | None,
        make_receiver: Callable[..., BatchReceiver],
    ) -> None:
        self.index = index
        self._place = place
        self._servers = servers
        self._home = self._link = link
        self._home_slot = slot
        self._inbox = link.inbox(slot)
        self._output: Output = output
        self._prefetch = prefetch
        self._on_server_loss = on_server_loss
        self._server_timeout = server_timeout
        self._make_receiver = make_receiver
        self._epoch = 0
        self._generation = protocol.BEFORE_ANY
        self._runs = False
        self._next = 0
        self._position = START
        self._frames = memoryview(b"")
        self._arrays: Any = None
        self._arrival = Arrival(0, 0, b"", None)
        self._largest_nbytes = 0  # of a batch
        self._window = _LEAST_WINDOW
        self._acknowledge_at = 0  # bytes used
        self._earlier = NOTHING_COUNTED  # of other slots
        self._losses = (0, 0)  # how often in a row before which batch

    @property
    def pid(self) -> int:
        """The process id on the server; 0 before it is known."""
        return self._inbox.counters.pid

    def start(self, epoch: int, generation: int, position: Position = START) -> None:
        self._runs = False
        while self._has_frames():  # of an epoch that was left
            self._next_message()
        self._epoch, self._generation, self._runs = epoch, generation, True
        self._next, self._position = position.first, position
        self._losses = (0, 0)
        if self._link is not self._home and self._home.is_up:
            self._change_to(self._home, self._home_slot)
        self._send_start()

    def stop(self, generation: int) -> None:
        if self._runs and generation == self._generation:
            self._runs = False
            inbox = self._inbox
            if inbox.attempt.broken:  # its server has ended, or knows nothing of it
                return
            self._servers.send(self._link, wire.STOP, slot=inbox.slot, attempt=inbox.attempt.number)

    def give(self, task: bytes, generation: int) -> None:
        raise MpwdsError("workers on servers iterate their dataset; they take no tasks")

    unsent = False

    def flush(self) -> None:
        """Nothing to do: the thread of the connections sends."""

    def register(self, poller: select.poll, *, receives: bool) -> None:
        if receives:
            inbox = self._inbox
            inbox.bell.clear()
            inbox.awaited = True
            if inbox.messages or (inbox.attempt.broken and self._link.is_up):
                inbox.bell.ring()
            poller.register(inbox.bell, select.POLLIN)

    def receive(self, generation: int) -> Message | None:
        interrupts.raise_kept()
        while self._link.notices:
            warn(self._link.notices.popleft())
        while self._has_frames():
            message = self._next_message()
            if message is not None:
                return message
        if self._inbox.failure is not None:
            raise self._inbox.failure
        is_broken = self._inbox.attempt.broken or not self._link.is_up
        if self._runs and is_broken and not self._recovered():
            self._wait_for_server()
        if self._inbox.receiver is not None:
            self._inbox.receiver.reclaim()
        return None

    def _has_frames(self) -> bool:
        """True if there are frames to read; takes those of the next arrival if there are none left."""
        while not self._frames and self._inbox.messages:
            self._arrival = self._inbox.messages.popleft()
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
                assert self._inbox.receiver is not None
                arrays = self._inbox.receiver.buffer(message)
            return batch_of(message.fields, arrays, self._output, allow_pickle=False)
        except (TypeError, ValueError, MpwdsError) as error:
            raise MpwdsError(f"{self._named} sent a batch that cannot be decoded: {error}") from error

    def discard(self, message: Message) -> None:
        arrays, self._arrays = self._arrays, None
        if arrays is None and self._inbox.receiver is not None:
            self._inbox.receiver.discard(message)

    @property
    def unsettled(self) -> bool:
        return self._inbox.receiver is not None and self._inbox.receiver.unsettled

    def settle(self) -> None:
        if self._inbox.receiver is not None:
            self._inbox.receiver.settle()

    def error(self, message: Message) -> BaseException:
        error = _revived(message.fields, f"{self._named} (pid {self.pid})")
        if isinstance(error, WorkerDied):
            error.worker, error.pid = self.index, self.pid
        return error

    def timed_out(self, generation: int, timeout_s: float) -> WorkerTimeout:
        state = "" if self._link.is_up else f", which is lost ({self._link.why})"
        return WorkerTimeout(
            f"{self._named}{state} delivered nothing for {timeout_s:g} s: raise timeout= if a batch may take "
            "that long, or see what its server says (`mpwds monitor`)",
            worker=self.index,
            pid=self.pid,
        )

    def snapshot(self) -> CounterSnapshot:
        since, counters = self._link.lost_since, self._earlier + self._inbox.counters
        lost_s = 0.0 if since is None else time.monotonic() - since
        return replace(counters, server=self._link.url, lost_s=lost_s)

    def disconnect(self) -> None:
        self.stop(self._generation)

    def wait(self, timeout_s: float) -> bool:
        """True: the process is its server's, which ends it."""
        return True

    def kill(self) -> None:
        """Nothing to do: see :meth:`wait`."""

    def release(self) -> None:
        """Nothing to do: the connections hold what is to be freed."""

    @property
    def _named(self) -> str:
        return f"worker {self.index} on {self._link.url}"

    def _send_start(self) -> None:
        inbox, link = self._inbox, self._link
        # The thread may be about to send the next ping before this command.
        attempt = inbox.attempt = Attempt(next(_attempts), link.ping + 2)
        self._set_window()
        if not link.is_up:
            attempt.broken = True
            return
        position = self._position._replace(first=self._next)
        self._servers.send(
            link,
            wire.START,
            slot=inbox.slot,
            attempt=attempt.number,
            epoch=self._epoch,
            place=list(self._place),
            window=self._window,
            shared_memory=link.taker is not None,
            **position._asdict(),
        )

    def _set_window(self) -> None:
        """The window of bytes that the server is told next; half of it used, the server hears of that."""
        batches = min(self._prefetch, self._link.definition.get("blocks", 1))  # it has no more on the way
        self._window = max(_LEAST_WINDOW, batches * self._largest_nbytes)
        self._inbox.window = max(self._inbox.window, self._window)
        self._acknowledge_at = self._inbox.attempt.used_nbytes + self._window // 2

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
            message = Message(fields, frame[end:], frame)
            if kind == protocol.SEGMENT:
                self._map_segment(message)
            elif kind == protocol.BATCH:
                self._check(message)
            else:
                message = Message(printed(fields), frame[end:], frame)
                _check_end(fields)
        except (MpwdsError, KeyError, TypeError, ValueError, OSError, struct.error) as error:
            if self._is_outdated:  # the server was lost just now, and its descriptors with it
                self._frames = memoryview(b"")
                return None
            raise MpwdsError(f"{self._named} sent a damaged message: {error}") from error
        has_parts = "block" in fields and self._arrays is not None
        nbytes = len(frame) + (fields["nbytes"] if has_parts else 0)
        is_old = self._arrival.attempt != self._inbox.attempt.number
        if is_old or kind == protocol.SEGMENT or not self._runs:
            if kind == protocol.BATCH:
                self.discard(message)
            if not is_old:
                self._use(nbytes)
            return None
        if kind == protocol.BATCH:
            if fields["nbytes"] > self._servers.most_nbytes:  # in shared memory
                self.discard(message)
                raise MpwdsError(self._servers.too_large(self._link, fields["nbytes"]))
            self._next = fields["sequence"] + 1
            if isinstance(fields.get("state"), bytes):
                self._position = Position(self._next, fields["state"], self._next)
        else:
            self._runs = False
        self._use(nbytes)
        return message

    @property
    def _is_outdated(self) -> bool:
        """True if the last arrival is of a session of the server that has ended, and with it its memory."""
        return self._arrival.session != self._link.session

    def _check(self, message: Message) -> None:
        """Checks the fields that the trainer relies on. Decoding checks arrays and structure."""
        fields = message.fields
        numbers = [fields["sequence"], fields["samples"], fields["nbytes"], *fields["offsets"]]
        if not (set(map(type, numbers)) <= _INT and min(numbers) >= 0):
            raise EnvelopeError("a number of a batch is not a whole number")
        if "kinds" in fields or "apart" in fields:
            raise EnvelopeError("a batch of a DataLoader")
        state = fields.get("state")
        if not (state is None or type(state) is str or (type(state) is bytes and state[:1] == b"m")):
            raise EnvelopeError("a state that is not msgpack: pickles are not accepted")
        block = fields.get("block")
        if block is not None and self._arrays is None:
            receiver = self._inbox.receiver
            if receiver is None or type(block) is not int or not 0 <= block < receiver.keep + 1:
                raise EnvelopeError(f"a batch in block {block!r} of memory that is not mapped")

    def _use(self, nbytes: int) -> None:
        """Counts the bytes of a message as used, and tells the server when they are half of the window."""
        attempt = self._inbox.attempt
        attempt.used_nbytes += nbytes
        if nbytes > self._largest_nbytes or attempt.used_nbytes >= self._acknowledge_at:
            self._largest_nbytes = max(self._largest_nbytes, nbytes)
            self._set_window()
            self._servers.send(
                self._link,
                wire.ACK,
                slot=self._inbox.slot,
                attempt=attempt.number,
                nbytes=attempt.used_nbytes,
                window=self._window,
            )

    def _map_segment(self, message: Message) -> None:
        """Maps the shared memory of the worker, which is on this machine."""
        inbox, taker, launch = self._inbox, self._link.taker, message.fields["launch"]
        if taker is None:
            raise EnvelopeError("shared memory of another machine")
        blocks, block_nbytes = message.fields["blocks"], message.fields["block_nbytes"]
        if not all(type(number) is int for number in (launch, blocks, block_nbytes)) or (
            not 1 <= blocks <= MOST_BLOCKS or not 0 < block_nbytes < 1 << 48
        ):
            raise EnvelopeError(f"a segment of {blocks!r:.20} blocks of {block_nbytes!r:.20} bytes")
        segment, bell = taker.take(inbox.slot, launch)
        process = self._arrival.session, launch
        if inbox.receiver is not None and inbox.mapped == process:
            os.close(bell)
        else:
            if inbox.receiver is not None:
                inbox.receiver.close()
            inbox.receiver = self._make_receiver(Bell(bell), keep=blocks - 1)
            inbox.mapped = process
        inbox.receiver.map_segment(message, segment)

    def _recovered(self) -> bool:
        """Starts the worker again if a server is there for it."""
        if self._link.refused:
            raise MpwdsError(self._link.refused)
        if not self._link.is_up and not self._moved():
            return False
        losses, before = self._losses
        self._losses = (losses + 1 if before == self._next else 1, self._next)
        if self._losses[0] > MOST_DEATHS * 3:
            raise MpwdsError(
                f"messages of {self._named} were lost {self._losses[0]} times in a row before batch "
                f"{self._next} of the epoch: see its log"
            )
        self._send_start()
        return True

    def _moved(self) -> bool:
        """Gives the worker's part to another server, if that is wanted and one is there."""
        if self._on_server_loss == "raise":
            raise ServerLost(
                f"the server {self._link.url} is lost ({self._link.why}) in the middle of an epoch: continue "
                'from the last state_dict(), or use on_server_loss="wait" or "move"'
            )
        others = [link for link in self._servers.links if link.is_up]
        if self._on_server_loss != "move" or not others:
            return False
        # By its number alone, so that all members of a group choose the same server and slot.
        new = others[self.index % len(others)]
        warn(
            f"the server {self._link.url} is lost ({self._link.why}): {new.url} takes over the part of "
            f"worker {self.index} from batch {self._next} on, so no batch is lost or delivered twice"
        )
        self._link.warned = True
        self._change_to(new, (new.workers or 0) + self.index)
        return True

    def _change_to(self, link: Link, slot: int) -> None:
        so_far = self._earlier + self._inbox.counters
        self._link, self._inbox = link, link.inbox(slot)
        self._earlier = so_far - self._inbox.counters

    def _wait_for_server(self) -> None:
        link = self._link
        lost_s = 0.0 if link.lost_since is None else time.monotonic() - link.lost_since
        if not link.warned:
            warn(f"the server {link.url} is lost ({link.why}): waiting for it to come back")
        elif lost_s > link.say_after_s:
            warn(f"still waiting for the server {link.url} ({link.why}), for {lost_s:.0f} s")
        if not link.warned or lost_s > link.say_after_s:
            link.warned, link.say_after_s = True, lost_s + SAY_EVERY_S
        limit = self._server_timeout
        if limit is not None and lost_s > limit:
            raise ServerLost(
                f"the server {link.url} is lost ({link.why}), and did not come back within {limit:g} s "
                "(server_timeout)"
            )


def _check_end(fields: dict[str, Any]) -> None:
    """Checks a message that ends a part."""
    kind, sent = fields["kind"], fields.get("sent")
    if kind == protocol.END:
        if type(sent) is not int or sent < 0:
            raise EnvelopeError(f"an end behind {sent!r:.50} batches")
        return
    texts = [fields[name] for name in ("summary", "traceback", "type")] if kind == protocol.ERROR else [None]
    if not all(type(text) is str for text in texts):
        raise EnvelopeError(f"a message of kind {kind!r:.50}")
    if type(fields["arguments"]) is not list or not all(type(note) is str for note in fields["notes"]):
        raise EnvelopeError("an error with other arguments or notes than lists")


def _revived(fields: dict[str, Any], where: str) -> BaseException:
    """The exception that an ``error`` message describes. Nothing is unpickled: the server is not trusted.

    Python's own exceptions and those of this package come with their type if their arguments are plain.
    Others become an :class:`MpwdsError` with the same text.
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
