"""A worker of a server, as the trainer's epochs use it."""

from __future__ import annotations

import itertools
import os
import select
import time
from collections.abc import Callable
from typing import Any, Literal

from mpwds.errors import EnvelopeError, MpwdsError, ServerLost, WorkerTimeout
from mpwds.feed import wire
from mpwds.feed.trainer.servers import Link, Servers
from mpwds.feed.wire import Place
from mpwds.loader.engine import failures, protocol
from mpwds.loader.engine.channel import LENGTHS, Message
from mpwds.loader.engine.epoch import MOST_DEATHS
from mpwds.loader.engine.receiving import BatchReceiver, Output, batch_of
from mpwds.loader.resume.progress import START, Position
from mpwds.loader.worker.counters import Reading
from mpwds.nest import unpack
from mpwds.sharedmem import interrupts
from mpwds.sharedmem.bell import Bell
from mpwds.warn import warn

OnServerLoss = Literal["wait", "move", "raise"]

_LEAST_WINDOW = 1 << 20
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
        self._receiver: BatchReceiver | None = None
        self._launch = -1
        self._epoch = 0
        self._generation = protocol.BEFORE_ANY
        self._runs = False
        self._next = 0
        self._position = START
        self._frames = memoryview(b"")
        self._arrays: Any = None
        self._is_old = False
        self._batch_nbytes = 0
        self._told_nbytes = 0
        self._losses = (0, 0)  # how often in a row before which batch

    @property
    def pid(self) -> int:
        """The process id on the server; 0 before it is known."""
        return self._inbox.pid

    def start(self, epoch: int, generation: int, position: Position = START) -> None:
        self._epoch, self._generation, self._runs = epoch, generation, True
        self._next, self._position = position.first, position
        self._losses = (0, 0)
        if self._link is not self._home and self._home.is_up:
            self._link, self._inbox = self._home, self._home.inbox(self._home_slot)
        self._send_start()

    def stop(self, generation: int) -> None:
        if self._runs and generation == self._generation:
            self._runs = False
            self._servers.send(self._link, wire.STOP, slot=self._inbox.slot, attempt=self._inbox.attempt)

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
            if inbox.messages or inbox.broken:
                inbox.bell.ring()
            poller.register(inbox.bell, select.POLLIN)

    def receive(self, generation: int) -> Message | None:
        interrupts.raise_kept()
        while True:
            while self._frames:
                message = self._next_message()
                if message is not None:
                    return message
            if self._inbox.messages:
                attempt, frames, self._arrays = self._inbox.messages.popleft()
                self._frames, self._is_old = memoryview(frames), attempt != self._inbox.attempt
                continue
            while self._link.notices:
                warn(f"{self._link.url}: {self._link.notices.popleft()}")
            if self._inbox.failure is not None:
                raise self._inbox.failure
            if self._runs and (self._inbox.broken or not self._link.is_up) and not self._recovered():
                self._wait_for_server()
            if self._receiver is not None:
                self._receiver.reclaim()
            return None

    def batch(self, message: Message) -> Any:
        try:
            if "block" not in message.fields:
                arrays = bytearray(message.payload)
            elif self._arrays is not None:
                arrays, self._arrays = self._arrays, None
            else:
                assert self._receiver is not None
                arrays = self._receiver.buffer(message)
            return batch_of(message.fields, arrays, self._output, allow_pickle=False)
        except (TypeError, ValueError, MpwdsError) as error:
            raise MpwdsError(f"{self._named} sent a batch that cannot be decoded: {error}") from error

    def discard(self, message: Message) -> None:
        self._arrays = None
        if self._receiver is not None:
            self._receiver.discard(message)

    @property
    def unsettled(self) -> bool:
        return self._receiver is not None and self._receiver.unsettled

    def settle(self) -> None:
        if self._receiver is not None:
            self._receiver.settle()

    def error(self, message: Message) -> BaseException:
        return failures.revive_plain(message.fields, f"{self._named} (pid {self.pid})")

    def timed_out(self, generation: int, timeout_s: float) -> WorkerTimeout:
        state = "" if self._link.is_up else f", which is lost ({self._link.why})"
        return WorkerTimeout(
            f"{self._named}{state} delivered nothing for {timeout_s:g} s: raise timeout= if a batch may take "
            "that long, or see what its server says (`mpwds monitor`)",
            worker=self.index,
            pid=self.pid,
        )

    def reading(self) -> Reading:
        return self._inbox.reading

    def disconnect(self) -> None:
        self.stop(self._generation)

    def wait(self, timeout_s: float) -> bool:
        """True: the process is its server's, which ends it."""
        return True

    def kill(self) -> None:
        """Nothing to do: see :meth:`wait`."""

    def release(self) -> None:
        if self._receiver is not None:
            self._receiver.close()

    @property
    def _named(self) -> str:
        return f"worker {self.index} on {self._link.url}"

    def _send_start(self) -> None:
        inbox, link = self._inbox, self._link
        inbox.expect(next(_attempts), link.ping + 1)
        self._told_nbytes = 0
        if not link.is_up:
            inbox.broken = True
            return
        position = self._position._replace(first=self._next)
        self._servers.send(
            link,
            wire.START,
            slot=inbox.slot,
            attempt=inbox.attempt,
            epoch=self._epoch,
            place=list(self._place),
            window=self._window,
            shared_memory=link.taker is not None,
            **position._asdict(),
        )

    @property
    def _window(self) -> int:
        return max(_LEAST_WINDOW, self._prefetch * self._batch_nbytes)

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
        except (MpwdsError, KeyError, TypeError, ValueError, OSError) as error:
            raise MpwdsError(f"{self._named} sent a damaged message: {error}") from error
        has_parts = "block" in fields and self._arrays is not None
        nbytes = len(frame) + (fields["nbytes"] if has_parts else 0)
        if self._is_old or kind == protocol.SEGMENT or not self._runs:
            if kind == protocol.BATCH:
                self.discard(message)
            if not self._is_old:
                self._use(nbytes, 0)
            return None
        if kind == protocol.BATCH:
            self._next = fields["sequence"] + 1
            if isinstance(fields.get("state"), bytes):
                if fields["state"][:1] != b"m":
                    raise MpwdsError(f"{self._named} sent a pickled state, which is not accepted")
                self._position = Position(self._next, fields["state"], self._next)
        else:
            self._runs = False
        self._use(nbytes, nbytes)
        return message

    def _check(self, message: Message) -> None:
        """Checks the fields that the trainer relies on. Decoding checks arrays and structure."""
        fields = message.fields
        numbers = [fields["sequence"], fields["samples"], fields["nbytes"], *fields["offsets"]]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise EnvelopeError("a number of a batch is not a whole number")
        if fields.keys() & {"kinds", "apart"}:
            raise EnvelopeError("a batch of a DataLoader")
        block = fields.get("block")
        if block is not None and self._arrays is None:
            receiver = self._receiver
            if receiver is None or type(block) is not int or not 0 <= block < receiver.keep + 1:
                raise EnvelopeError(f"a batch in block {block!r} of memory that is not mapped")

    def _use(self, nbytes: int, batch_nbytes: int) -> None:
        """Counts bytes as used, and tells the server when they are worth a message."""
        self._inbox.used_nbytes += nbytes
        self._batch_nbytes = batch_nbytes or self._batch_nbytes
        used = self._inbox.used_nbytes
        if 2 * (used - self._told_nbytes) >= self._window:
            self._told_nbytes = used
            self._servers.send(
                self._link,
                wire.ACK,
                slot=self._inbox.slot,
                attempt=self._inbox.attempt,
                nbytes=used,
                window=self._window,
            )

    def _map_segment(self, message: Message) -> None:
        """Maps the shared memory of the worker, which is on this machine."""
        taker, launch = self._link.taker, message.fields["launch"]
        if taker is None:
            raise EnvelopeError("shared memory of another machine")
        segment, bell = taker.take(self._inbox.slot, launch)
        if launch == self._launch and self._receiver is not None:
            os.close(bell)
        else:
            if self._receiver is not None:
                self._receiver.close()
            self._launch = launch
            self._receiver = self._make_receiver(Bell(bell), keep=message.fields["blocks"] - 1)
        self._receiver.map_segment(message, segment)

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
        new = min(others, key=lambda link: len(link.inboxes))
        slot = max(new.inboxes, default=-1) + 1
        warn(
            f"the server {self._link.url} is lost ({self._link.why}): {new.url} takes over the part of "
            f"worker {self.index} from batch {self._next} on, so no batch is lost or delivered twice"
        )
        self._link, self._inbox = new, new.inbox(slot)
        return True

    def _wait_for_server(self) -> None:
        link = self._link
        if not link.warned:
            link.warned = True
            warn(f"the server {link.url} is lost ({link.why}): waiting for it to come back")
        limit = self._server_timeout
        if limit is not None and link.lost_since is not None and time.monotonic() - link.lost_since > limit:
            raise ServerLost(
                f"the server {link.url} is lost ({link.why}), and did not come back within {limit:g} s "
                "(server_timeout)"
            )
