"""A trainer's connection to one server, its options, and what has arrived from each slot of the server."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, NoReturn

import zmq

from mpwds.errors import MpwdsError
from mpwds.feed import keys, wire
from mpwds.feed.client.addresses import ServerAddresses, ServerDirectory, Urls
from mpwds.feed.fd_passing import FdReceiver
from mpwds.interrupts import uninterrupted
from mpwds.loader.engine import options
from mpwds.loader.engine.local_worker import BatchReceiver
from mpwds.sharedmem.arena import EventFd
from mpwds.stats.snapshot import NOTHING_COUNTED, CounterSnapshot
from mpwds.viewing.wording import size
from mpwds.warn import warn

logger = logging.getLogger("mpwds.feed")

_RETRY_S = 0.05
_ANEW_S = 2.0
_LOG_EVERY_S = 5.0
_LINGER_MS = 300
_MOST_WINDOWS = 4  # that an attempt may bring before any of it is used


OnServerLoss = Literal["wait", "move", "raise"]


@dataclass(frozen=True)
class RemoteOptions:
    """Options by which a loader reaches its servers; see ``RemoteLoader``."""

    urls: Urls
    workers: int | None = None
    keys: str | os.PathLike[str] | None = None
    insecure: bool = False
    group: str | None = None
    members: int | None = None
    max_lag: float | None = None
    on_server_loss: OnServerLoss | None = None
    min_servers: int | None = None
    max_servers: int | None = None
    server_timeout: float | None = 600.0
    timeout: float | None = None
    heartbeat_timeout: float = wire.LOST_S
    max_batch_bytes: int = 4 << 30
    shared_memory: bool = True
    fingerprint: str | None = None  # that the servers' dataset must have
    prefetch: int = 2
    local: int = 0  # workers on this machine
    given: Mapping[str, int] = field(default_factory=dict)  # by fixed servers, the first time

    def __post_init__(self) -> None:
        name = "RemoteLoader"
        for number in ("workers", "members", "min_servers", "max_servers", "max_batch_bytes"):
            if vars(self)[number] is not None:
                options.integer(name, number, vars(self)[number], at_least=1)
        if self.group is None and (self.members is not None or self.max_lag is not None):
            raise ValueError(f"{name}: members= and max_lag= belong to a group=")
        if self.on_server_loss is not None:
            options.choice(name, "on_server_loss", self.on_server_loss, OnServerLoss)
        for each in (self.server_timeout, self.max_lag):
            options.timeout(name, each)
        wire.check_silence(name, "heartbeat_timeout", self.heartbeat_timeout)
        if self.group is not None and not wire.is_line(self.group):
            raise ValueError(f"{name}: group= is a short line of text, got {self.group!r:.100}")
        addresses = self.addresses()
        most = self.max_servers if addresses.is_followed else len(addresses.look_up())
        if self.min_servers is not None and most is not None and self.min_servers > most:
            raise ValueError(f"{name}: min_servers={self.min_servers}, and there are {most} at the most")
        if (self.workers or wire.MOST_WORKERS) < (self.min_servers or 1):
            raise ValueError(
                f"{name}: min_servers={self.min_servers} need as many workers=, got {self.workers}"
            )
        if self.workers is not None and most is not None and self.workers > wire.MOST_WORKERS * most:
            raise ValueError(f"{name}: a server has up to {wire.MOST_WORKERS} workers, got {self.workers}")

    @property
    def key_folder(self) -> str | os.PathLike[str] | None:
        directory = self.urls if isinstance(self.urls, ServerDirectory) else None
        return directory.keys if directory is not None and self.keys is None else self.keys

    def addresses(self, tell: Callable[[str], None] = warn) -> ServerAddresses:
        """Makes what looks up the servers. Raises ValueError or SecurityError if one may not be used."""
        check = partial(keys.check_url, keys=self.key_folder, insecure=self.insecure)
        return ServerAddresses(self.urls, check, tell)


class ReceivedMessage(NamedTuple):
    """A data message: the server's session and the attempt that it is of, its messages and their arrays."""

    session: int
    attempt: int
    frames: bytes
    arrays: Any


@dataclass(eq=False)
class StartAttempt:
    """A command ``start``, and counts of the messages that answered it.

    Each has an object of its own: what the receiving thread notes late is not taken for news of the next one.
    """

    number: int = 0
    ping: int = 0  # the first ping after the command
    received: int = 0  # data messages
    received_nbytes: int = 0
    used_nbytes: int = 0
    broken: bool = False  # messages were lost: the worker must start again


@dataclass(eq=False)
class ReceiveQueue:
    """Messages for one slot of a server, and the latest counters of its worker.

    The receiving thread fills it. The training thread empties it, and maps the memory of the worker process
    ``mapped`` (a server's session and the number of the launch): ``receiver``.
    """

    slot: int
    attempt: StartAttempt = field(default_factory=StartAttempt)
    failure: MpwdsError | None = None
    window: int = 0  # the largest that the server was told
    awaited: bool = False
    counters: CounterSnapshot = NOTHING_COUNTED
    before: CounterSnapshot = NOTHING_COUNTED  # of earlier sessions
    messages: deque[ReceivedMessage] = field(default_factory=deque)
    bell: EventFd = field(default_factory=EventFd)
    receiver: BatchReceiver | None = None
    mapped: tuple[int, int] = (0, 0)

    def announce(self) -> None:
        if self.awaited:
            self.awaited = False
            self.bell.ring()

    def fail(self, why: str) -> NoReturn:
        self.failure = self.failure or MpwdsError(why)
        self.announce()
        raise wire.Malformed(why)


@dataclass(eq=False)
class ServerConnection:
    """The connection to one server. The receiving thread of :class:`ServerConnections` calls its methods.

    ``is_up`` is true from the server's welcome, each of which begins a ``session``, until the server is
    lost. ZeroMQ does not connect again after a handshake that failed, or when another program has answered:
    :meth:`keep_alive` does so at ``retry_at``.
    """

    url: str
    workers: int | None  # that it is asked for (None: its own choice, 0: it is not asked), or gave
    share: tuple[int, int]  # this trainer's number among those that share the server, and theirs
    options: RemoteOptions
    context: InitVar[zmq.Context[zmq.Socket[bytes]]]
    room: Callable[[int], Any]  # gives memory for the arrays of a batch
    notices: deque[str]  # for the user
    socket: zmq.Socket[bytes] = field(init=False)
    breaks: zmq.Socket[bytes] = field(init=False)  # tells when the socket gets and loses its connection
    is_connected: bool = False
    session: int = 0  # 0 before the first
    asked: tuple[int, int] = (0, 1)  # the share that the last hello told
    is_up: bool = False
    why: str = "it does not answer"  # that it is not up, as far as the server told
    refused: str = ""  # why the server will not serve this client
    lost_since: float | None = None  # None if it is up, or was never
    retry_at: float | None = None
    definition: dict[str, Any] = field(default_factory=dict)
    fd_receiver: FdReceiver | None = None
    queues: dict[int, ReceiveQueue] = field(default_factory=dict)
    dropped: int = 0  # malformed messages
    logged: float = -_LOG_EVERY_S
    warned: bool = False  # the user was told that it is lost
    mismatches: int = 0  # handshakes in a row that failed since keys do not match
    say_after_s: float = 0.0  # how long it must be lost until the user is told next
    ping: int = 0
    epoch: int | None = None  # at the last ping: its parts have been asked for by the next one
    heard: float = 0.0
    tick: float = 0.0

    def __post_init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        limit = self.options.max_batch_bytes + wire.COMMAND_NBYTES
        self.socket = socket = keys.client_socket(context, self.url, self.options.key_folder, limit)
        socket.reconnect_ivl_max = 1000
        wire.notice_lost_machines(socket, self.options.heartbeat_timeout)
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | keys.HANDSHAKE_FAILED
        self.breaks = uninterrupted(socket.get_monitor_socket, events)
        try:
            socket.connect(self.url)
        except zmq.ZMQError:
            uninterrupted(socket.disable_monitor)
            self.breaks.close(0)
            socket.close(0)
            raise

    def queue(self, slot: int) -> ReceiveQueue:
        return self.queues.setdefault(slot, ReceiveQueue(slot))

    @property
    def loss(self) -> str:
        """Says that the server is lost, and why."""
        return f"the server {self.url} is lost ({self.why})"

    def send(self, data: bytes) -> bool:
        """Sends a command now, in the receiving thread; false if the server is away.

        Nothing piles up for a server that is away. ZeroMQ would see to that by ``immediate``, which drops
        what has arrived when a connection breaks, and aborts if half a message was read by then.
        """
        if self.is_connected:
            with contextlib.suppress(zmq.Again):
                self.socket.send(data, zmq.NOBLOCK)
                return True
        return False

    def keep_alive(self, now: float, hello: dict[str, Any], epoch: int | None) -> None:
        """Pings the server, or says hello to it, if that is due; one that is silent for long is lost."""
        if self.is_up and now - self.heard > self.options.heartbeat_timeout:
            self.lose("it does not answer")
        if self.retry_at is not None and now > self.retry_at:
            self.retry_at = None
            uninterrupted(self.socket.disconnect, self.url)
            self.socket.connect(self.url)
        if now - self.tick < wire.PING_S:
            return
        self.tick = now
        if self.is_up:
            self.ping += 1
            attempts = [(queue.slot, queue.attempt) for queue in tuple(self.queues.values())]
            used = [[slot, attempt.number, attempt.used_nbytes] for slot, attempt in attempts]
            self.send(wire.pack(wire.PING, number=self.ping, acknowledged=used, epoch=self.epoch))
            self.epoch = epoch
        elif (
            self.refused
            or self.workers == 0
            or self.send(wire.pack(wire.HELLO, workers=self.workers, share=list(self.share), **hello))
        ):
            self.retry_at, self.asked = None, self.share
        else:
            self.tick = now - wire.PING_S + _RETRY_S  # it is not connected yet
            self.retry_at = self.retry_at or now + _ANEW_S
            self.why = _why_no_socket(self.url) or self.why

    def drop(self, what: str) -> None:
        """Counts and logs a malformed message."""
        self.dropped += 1
        if not self.is_up:
            self.why = f"what it sends is no message of this protocol: {what}"
        now = time.monotonic()
        if now - self.logged >= _LOG_EVERY_S:
            self.logged = now
            logger.warning("dropped message %d of the server %s: %s", self.dropped, self.url, what)

    def note_handshake(self, event: int) -> None:
        """The handshake succeeded, or failed: a server that does not know a key may learn it."""
        self.is_connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
        if self.is_connected:
            self.mismatches = 0
            return
        why = "it does not know the key of this trainer: copy client.key into its folder of keys"
        if event != zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self.mismatches += 1
            why = (
                "its keys and those of this trainer do not match: copy the folder of keys from the server's "
                "machine to this one, and pass it as keys="
            )
        if not self.is_up:
            self.why = why

    def take_welcome(self, welcome: dict[str, Any]) -> None:
        """Begins a session, unless the server has another dataset than before."""
        before = self.definition.get("fingerprint")
        if before not in (None, welcome["fingerprint"]):
            self.send(wire.pack(wire.BYE))
            self.refuse(
                f"the server {self.url} came back with another dataset (fingerprint "
                f"{welcome['fingerprint']}) than before ({before}): serve the same definition again, or "
                "begin the epoch again"
            )
            return
        self.session += 1  # first: memory that the training thread cannot map from now on is of the old one
        self._close_fd_receiver()
        if welcome["handover"] is not None:
            # In another container, perhaps, it cannot be reached: then arrays come over the socket.
            with contextlib.suppress(OSError, ValueError):
                identity: Any = self.socket.identity
                self.fd_receiver = FdReceiver(str(welcome["handover"]), identity)
        self.definition, self.workers = welcome, int(welcome["workers"])
        for queue in tuple(self.queues.values()):
            queue.before = queue.counters
        if self.warned and self.lost_since is not None:
            away_s = time.monotonic() - self.lost_since
            self.notices.append(f"the server {self.url} is back after {away_s:.1f} s, and its workers go on")
        self.is_up, self.lost_since, self.warned, self.say_after_s = True, None, False, 0.0
        self.break_all()

    def take_pong(self, pong: dict[str, Any]) -> None:
        """Learns what was lost, and the workers' counters."""
        if not self.is_up:
            return
        if pong["server"] != self.definition["server"]:
            self.lose("it has restarted")
            return
        if not pong["known"]:
            self.lose("it took this trainer for gone")
            return
        there = {slot: (attempt, number) for slot, attempt, number in pong["slots"]}
        for queue in tuple(self.queues.values()):
            attempt = queue.attempt
            known, number = there.get(queue.slot, (-1, 0))
            lost = attempt.received < number if known == attempt.number else pong["number"] >= attempt.ping
            if lost and not attempt.broken and attempt.number:
                self.miss(queue, attempt)
            if queue.slot in pong["counters"]:
                queue.counters = queue.before + wire.unpack_counters(pong["counters"][queue.slot])

    def take_data(self, head: wire.DataHeader) -> None:
        """Receives the rest of a data message, for the training thread. ``Malformed`` if it is damaged."""
        queue = self.queues.get(head.slot)
        if queue is None or not self.socket.rcvmore:
            raise wire.Malformed("data of an unknown slot, or without messages")
        frames = self.socket.recv()
        nbytes = len(frames) + head.nbytes
        if max(len(frames), head.nbytes) > self.options.max_batch_bytes:
            queue.fail(self.too_large(nbytes))
        attempt = queue.attempt
        is_old = head.attempt != attempt.number
        if is_old and self.fd_receiver is None:  # it carries no block that must be handed back
            return
        if attempt.received_nbytes - attempt.used_nbytes > _MOST_WINDOWS * queue.window:
            queue.fail(f"the server {self.url} sends more than it was asked for: is it one of mpwds?")
        arrays = self._receive_arrays(head.nbytes) if head.nbytes else None
        if self.socket.rcvmore:
            raise wire.Malformed("a batch with more parts than its head tells")
        if not is_old:
            if head.number != attempt.received:  # messages after the gap will be sent again, too
                self.miss(queue, attempt)
                return
            attempt.received += 1
            attempt.received_nbytes += nbytes
        queue.messages.append(ReceivedMessage(self.session, head.attempt, frames, arrays))
        queue.announce()

    def _receive_arrays(self, nbytes: int) -> Any:
        arrays = self.room(nbytes)
        memory = memoryview(arrays if isinstance(arrays, ctypes.Array) else arrays.numpy()).cast("B")
        for at in range(0, nbytes, wire.PART_NBYTES):
            part = memory[at : min(at + wire.PART_NBYTES, nbytes)]
            if not self.socket.rcvmore:
                raise wire.Malformed("a batch without all of its parts")
            if self.socket.recv_into(part) != part.nbytes:
                raise wire.Malformed("a part of a wrong size")
        return arrays

    def too_large(self, nbytes: int) -> str:
        """The text of an error: a batch is larger than the client accepts."""
        return (
            f"the server {self.url} sent a batch of {size(nbytes)}: raise max_batch_bytes= "
            f"({size(self.options.max_batch_bytes)}) to accept it"
        )

    def miss(self, queue: ReceiveQueue, attempt: StartAttempt) -> None:
        """Messages were lost. If blocks are lost with them, only a new session helps."""
        attempt.broken = True
        if self.fd_receiver is not None:
            self.lose("messages were lost")
        queue.announce()

    def refuse(self, why: str) -> None:
        """Ends the session for good."""
        self.refused = why
        self.lose(why)

    def lose(self, why: str) -> None:
        """Ends the session: the parts of all slots must start again."""
        self.is_up, self.why, self.lost_since = False, why, time.monotonic()
        self.break_all()

    def leave(self, why: str) -> None:
        """Ends the session, because another server takes this one's place."""
        self.send(wire.pack(wire.BYE))
        self.lose(why)

    def break_all(self) -> None:
        for queue in tuple(self.queues.values()):
            queue.attempt.broken = True
            queue.announce()

    def close(self) -> None:
        """Ends the connection. What has arrived stays, until :meth:`free`."""
        self.is_connected = False
        uninterrupted(self.socket.disable_monitor)
        self.breaks.close(0)
        self.socket.close(_LINGER_MS)
        self.session += 1  # as in a new session: the training thread maps no more of its memory
        self._close_fd_receiver()

    def free(self) -> None:
        """Lets go of the memory of the server's workers."""
        for queue in self.queues.values():
            if queue.receiver is not None:
                queue.receiver.close()

    def _close_fd_receiver(self) -> None:
        if self.fd_receiver is not None:
            self.fd_receiver.close()
        self.fd_receiver = None


def _why_no_socket(url: str) -> str:
    """Says why an ``ipc`` address cannot be connected to, as ZeroMQ does not; empty if it can."""
    path = url[len("ipc://") :]
    if not url.startswith("ipc:///") or os.access(path, os.W_OK):
        return ""
    return f"this user may not write to {path}" if os.path.exists(path) else f"there is no {path}"
