"""A trainer's connections to its servers, in a thread that receives while the training step runs.

A thread and not a process: ZeroMQ receives in a thread of its own, and copies a part into its block without
the interpreter lock, so this thread takes about 20 us of it for each megabyte. A process would have to hand
over every batch once more.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn
from urllib.parse import urlsplit

import zmq
from zmq.utils.monitor import recv_monitor_message

from mpwds.errors import MpwdsError, ServerLost
from mpwds.feed import keys, wire
from mpwds.feed.direct import DirectReceiver
from mpwds.feed.handover import Taker
from mpwds.feed.wire import Head, Malformed
from mpwds.loader.engine.receiving import BatchReceiver
from mpwds.loader.worker.counters import Reading
from mpwds.sharedmem.bell import Bell
from mpwds.warn import warn

_MESSAGES_AT_ONCE = 64
_WARN_AFTER_S = 5.0
_ASK_S = 60.0
_RETRY_S = 0.05
_LINGER_MS = 300
_MOST_MESSAGES = 256
_MOST_NOTICES = 32
_MOST_WINDOWS = 4  # that may lie in an inbox: those of some earlier attempts, too


class Arrival(NamedTuple):
    """A data message: the server's session and the attempt that it is of, its messages and their arrays."""

    session: int
    attempt: int
    frames: bytes
    arrays: Any
    nbytes: int


@dataclass(eq=False)
class Attempt:
    """What a ``start`` has brought so far.

    Each one has an object of its own, so what the receiving thread still notes of the one before cannot be
    taken for news of the next.
    """

    number: int = 0
    ping: int = 0  # the first ping behind the command
    received: int = 0  # data messages
    used_nbytes: int = 0
    broken: bool = False  # messages were lost: the worker must start anew


@dataclass(eq=False)
class Inbox:
    """What has arrived for one slot of a server, and what its worker's counters were last.

    The receiving thread fills it. The training thread empties it, and maps the memory of the slot's worker:
    ``receiver``, for the worker process ``mapped``, a server's session and the number of the launch.
    """

    slot: int
    attempt: Attempt = field(default_factory=Attempt)
    failure: MpwdsError | None = None
    window: int = 0  # the largest that the server was told
    arrived_nbytes: int = 0
    taken_nbytes: int = 0  # of those, by the training thread
    awaited: bool = False
    pid: int = 0
    restarts: int = 0
    reading: Reading = field(default_factory=Reading)
    before: tuple[int, Reading] = (0, Reading())  # restarts and counters of earlier sessions
    messages: deque[Arrival] = field(default_factory=deque)
    bell: Bell = field(default_factory=Bell)
    receiver: BatchReceiver | None = None
    mapped: tuple[int, int] = (0, 0)

    def put(self, arrival: Arrival) -> None:
        self.arrived_nbytes += arrival.nbytes
        self.messages.append(arrival)

    def take(self) -> Arrival:
        arrival = self.messages.popleft()
        self.taken_nbytes += arrival.nbytes
        return arrival

    def announce(self) -> None:
        if self.awaited:
            self.awaited = False
            self.bell.ring()


@dataclass(eq=False)
class Link:
    """The connection to one server.

    Attributes:
        breaks: Tells when the socket loses its connection.
        session: Counts how often the server has welcomed this trainer; 0 before the first time.
        is_up: The server has welcomed this trainer, and is not silent.
        why: Why it is not up, as far as the server told.
        refused: Why the server will not serve this trainer.
        lost_since: When it stopped to answer; ``None`` if it is up, or was never.
    """

    url: str
    workers: int | None
    socket: zmq.Socket[bytes]
    breaks: zmq.Socket[bytes]
    identity: bytes
    session: int = 0
    is_up: bool = False
    why: str = "it does not answer"
    refused: str = ""
    lost_since: float | None = None
    server: str = ""
    definition: dict[str, Any] = field(default_factory=dict)
    taker: Taker | None = None
    direct: DirectReceiver | None = None
    inboxes: dict[int, Inbox] = field(default_factory=dict)
    notices: deque[str] = field(default_factory=lambda: deque(maxlen=_MOST_NOTICES))
    warned: bool = False
    ping: int = 0
    heard: float = 0.0
    tick: float = 0.0

    def inbox(self, slot: int) -> Inbox:
        return self.inboxes.setdefault(slot, Inbox(slot))

    @property
    def has_others(self) -> bool:
        """Whether arrays come by another way than their messages."""
        return self.taker is not None or self.direct is not None

    def close_others(self) -> None:
        """Closes the connections beside ZeroMQ's."""
        for connection in (self.taker, self.direct):
            if connection is not None:
                connection.close()
        self.taker = self.direct = None

    def break_all(self) -> None:
        for inbox in tuple(self.inboxes.values()):
            inbox.attempt.broken = True
            inbox.announce()


class Servers:
    """The servers of a loader; :meth:`connect` starts the thread, :meth:`close` ends it.

    ``hello`` are the fields of that command but for ``workers``, which are dealt to the servers if a number
    is given. ``room(nbytes)`` gives memory for the arrays of a batch.
    """

    def __init__(
        self,
        urls: Sequence[str],
        workers: int | None,
        hello: dict[str, Any],
        room: Callable[[int], Any],
        *,
        folder: str | os.PathLike[str] | None,
        max_batch_bytes: int,
        lost_after: float,
    ) -> None:
        self._hello = hello
        self._room = room
        self._most_nbytes = max_batch_bytes
        self._lost_after = lost_after
        self._owner = os.getpid()
        self._context = zmq.Context()
        self._closing = False
        self._wake = Bell()
        self._outbox: deque[tuple[Link, bytes]] = deque()
        self._questions: dict[int, Future[dict[str, Any]]] = {}
        self._requests = itertools.count()
        self._changed = threading.Event()
        self.dropped = 0
        self.links: list[Link] = []
        urls = urls if workers is None else urls[:workers]
        self._thread = threading.Thread(target=self._run, name="mpwds-feed", daemon=True)
        try:
            for number, url in enumerate(urls):
                share = None if workers is None else (workers + len(urls) - 1 - number) // len(urls)
                self.links.append(self._link(url, share, folder))
        except BaseException:
            self._context.destroy(0)
            raise

    def connect(self, timeout: float | None) -> None:
        """Waits until every server has welcomed this trainer.

        Raises:
            ServerLost: One did not within ``timeout`` seconds.
            MpwdsError: One refuses, or the servers have different datasets.
        """
        self._thread.start()
        began = time.monotonic()
        warned = False
        while True:
            self._changed.clear()
            missing = [link for link in self.links if not link.is_up]
            for link in self.links:
                if link.refused:
                    raise MpwdsError(link.refused)
            self._compare()
            if not missing:
                return
            waited = time.monotonic() - began
            named = ", ".join(f"{link.url} ({link.why})" for link in missing)
            if timeout is not None and waited > timeout:
                raise ServerLost(
                    f"no server is ready at {named} after {timeout:g} s: start it with `mpwds serve`, ask "
                    "for fewer workers=, or raise server_timeout="
                )
            if waited > _WARN_AFTER_S and not warned:
                warned = True
                warn(f"waiting for the server at {named}")
            self._changed.wait(0.2)

    def send(self, link: Link, kind: str, **fields: Any) -> None:
        """Sends a command soon. It is lost if the server is; the next ping shows that."""
        if not link.refused:
            self._outbox.append((link, wire.pack(kind, **fields)))
            self._wake.ring()

    def ask(self, link: Link, kind: str, **fields: Any) -> dict[str, Any]:
        """Sends a question and waits for the answer; ServerLost if none comes."""
        request = next(self._requests)
        future = self._questions[request] = Future()
        self.send(link, kind, request=request, **fields)
        try:
            return future.result(_ASK_S)
        except TimeoutError:
            raise ServerLost(f"the server {link.url} did not answer within {_ASK_S:g} s") from None
        finally:
            del self._questions[request]

    def close(self) -> None:
        """Tells the servers that this trainer leaves. In a fork of the trainer, does nothing."""
        if os.getpid() != self._owner or self._closing:
            return
        for link in self.links:
            if link.is_up:
                self.send(link, wire.BYE)
        self._closing = True
        self._wake.ring()
        if self._thread.ident is not None:
            self._thread.join(10)
        for link in self.links:
            link.socket.disable_monitor()
            link.breaks.close(0)
            link.socket.close(_LINGER_MS)
            link.close_others()
            for inbox in link.inboxes.values():
                if inbox.receiver is not None:
                    inbox.receiver.close()
        self._context.term()

    def _link(self, url: str, workers: int | None, folder: str | os.PathLike[str] | None) -> Link:
        identity = b"\1" + secrets.token_bytes(wire.IDENTITY_NBYTES - 1)
        socket = self._context.socket(zmq.DEALER)
        socket.identity = identity
        socket.immediate = True  # nothing piles up for a server that is away
        socket.maxmsgsize = self._most_nbytes + wire.COMMAND_NBYTES
        socket.rcvhwm = _MOST_MESSAGES
        socket.ipv6 = True
        socket.reconnect_ivl_max = 1000
        socket.heartbeat_ivl = 2000
        socket.heartbeat_timeout = int(self._lost_after * 1000)
        if folder is not None:
            keys.secure_client(socket, folder)
        breaks = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | keys.HANDSHAKE_FAILED)
        socket.connect(url)
        return Link(url, workers, socket, breaks, identity)

    def _compare(self) -> None:
        """Raises if two servers have different datasets."""
        known = [link for link in self.links if link.definition]
        for link in known:
            first = known[0]
            if link.definition["fingerprint"] != first.definition["fingerprint"]:
                raise MpwdsError(
                    f"the servers have different datasets: {first.url} serves {_shown(first)}, {link.url} "
                    f"serves {_shown(link)}: serve the same definition everywhere, with the same Python"
                )

    # The receiving thread.

    def _run(self) -> None:
        try:
            self._keep_receiving()
        except Exception as error:  # a trainer that waits for it must hear of that
            for link in self.links:
                link.refused = f"receiving from servers failed: {type(error).__name__}: {error}"
                self._lose(link, link.refused)
            self._changed.set()

    def _keep_receiving(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake.fileno(), zmq.POLLIN)
        for link in self.links:
            poller.register(link.socket, zmq.POLLIN)
            poller.register(link.breaks, zmq.POLLIN)
        looked = time.monotonic()
        while True:
            now = time.monotonic()
            for link in self.links:
                if now - looked > 2 * wire.PING_S:  # this process stood still: the silence was its own
                    link.heard += now - looked
                self._keep_alive(link, now)
            looked = now
            wait_s = min(link.tick for link in self.links) + wire.PING_S - now
            poller.poll(max(0, round(wait_s * 1000)))
            self._wake.clear()
            closing = self._closing  # read first: what was to be sent before is in the outbox by now
            self._send_commands()
            if closing:
                return
            for link in self.links:
                for _ in range(_MESSAGES_AT_ONCE):
                    if not self._receive(link):
                        break
                self._look_for_break(link)

    def _send_commands(self) -> None:
        while self._outbox:
            link, data = self._outbox.popleft()
            _send(link, data)

    def _go_on(self, heard: Link) -> None:
        """What is due while a large batch arrives; without news of what was used, its server would wait."""
        self._send_commands()
        now = heard.heard = time.monotonic()
        for link in self.links:
            self._keep_alive(link, now)

    def _keep_alive(self, link: Link, now: float) -> None:
        if link.is_up and now - link.heard > self._lost_after:
            self._lose(link, "it does not answer")
        if now - link.tick < wire.PING_S:
            return
        link.tick = now
        if link.is_up:
            link.ping += 1
            attempts = [(inbox.slot, inbox.attempt) for inbox in tuple(link.inboxes.values())]
            used = [[slot, attempt.number, attempt.used_nbytes] for slot, attempt in attempts]
            _send(link, wire.pack(wire.PING, number=link.ping, acknowledged=used))
        elif not link.refused and not _send(link, wire.pack(wire.HELLO, workers=link.workers, **self._hello)):
            link.tick = now - wire.PING_S + _RETRY_S  # it is not connected yet

    def _look_for_break(self, link: Link) -> None:
        """Ends a session that has lost its connection, if the server has blocks in messages that are lost.

        Otherwise pings show what was lost, if anything, when the connection is there again.
        """
        has_broken = False
        while int(link.breaks.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            if recv_monitor_message(link.breaks)["event"] == zmq.EVENT_DISCONNECTED:
                has_broken = True
            elif not link.is_up:
                link.why = "it is there, but the handshake fails: are the keys of both sides the same?"
        while has_broken and self._receive(link):
            pass  # it may have said goodbye before
        if has_broken and link.is_up and link.has_others:
            self._lose(link, "its connection broke")

    def _refuse(self, link: Link, why: str) -> None:
        link.refused = why
        self._lose(link, why)

    def _lose(self, link: Link, why: str) -> None:
        link.is_up, link.why, link.lost_since = False, why, time.monotonic()
        link.break_all()

    def _receive(self, link: Link) -> bool:
        """Receives one message, if one is there."""
        socket = link.socket
        try:
            first = socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return False
        link.heard = time.monotonic()
        try:
            reply = wire.unpack_reply(first)
            if isinstance(reply, Head):
                self._receive_data(link, reply)
            else:
                self._handle(link, reply)
        except (MpwdsError, ArithmeticError, LookupError, TypeError, ValueError):
            self.dropped += 1
        except MemoryError as error:
            self._refuse(link, f"there is no memory for a batch of the server {link.url}: {error}")
        while socket.rcvmore:
            socket.recv_into(bytearray(1))
        return True

    def _receive_data(self, link: Link, head: Head) -> None:
        socket = link.socket
        inbox = link.inboxes.get(head.slot)
        if inbox is None or not socket.rcvmore:
            raise Malformed("data of an unknown slot, or without messages")
        frames = socket.recv()
        nbytes, most = len(frames) + head.nbytes, self._most_nbytes
        if max(len(frames), head.nbytes) > most:
            _fail(
                inbox,
                f"the server {link.url} sent a batch of {nbytes / 1e6:,.1f} MB: raise max_batch_bytes= "
                f"({most / 1e6:,.1f} MB) to accept it",
            )
        if inbox.arrived_nbytes - inbox.taken_nbytes > _MOST_WINDOWS * inbox.window:
            _fail(inbox, f"the server {link.url} sends more than it was asked for: is it one of mpwds?")
        arrays = self._receive_arrays(link, head) if head.nbytes else None
        if socket.rcvmore:
            raise Malformed("a batch with more parts than its head tells")
        attempt = inbox.attempt
        if head.attempt == attempt.number:
            if head.number != attempt.received:  # those behind the gap will be sent again, too
                self._miss(link, attempt)
                inbox.announce()
                return
            attempt.received += 1
        inbox.put(Arrival(link.session, head.attempt, frames, arrays, nbytes))
        inbox.announce()

    def _miss(self, link: Link, attempt: Attempt) -> None:
        """Messages were lost. If blocks or arrays are lost with them, only a new session helps."""
        attempt.broken = True
        if link.has_others:
            self._lose(link, "messages were lost")

    def _receive_arrays(self, link: Link, head: Head) -> Any:
        arrays = self._room(head.nbytes)
        memory = memoryview(arrays if not hasattr(arrays, "numpy") else arrays.numpy()).cast("B")
        if link.direct is None:
            _receive_parts(link.socket, memory[: head.nbytes])
            return arrays
        try:
            link.direct.receive(head, memory, lambda: self._go_on(link))
        except MpwdsError as error:
            self._lose(link, str(error))
            raise
        return arrays

    def _handle(self, link: Link, reply: dict[str, Any]) -> None:
        kind = reply["kind"]
        if kind == wire.PONG:
            self._pong(link, reply)
        elif kind == wire.WELCOME:
            self._welcomed(link, reply)
        elif kind == wire.WAIT:
            link.why = str(reply["why"])
        elif kind == wire.REFUSED:
            self._refuse(link, f"the server {link.url} refuses: {reply['why']}")
        elif kind == wire.NOTICE:
            link.notices.append(str(reply["text"]))
        elif kind == wire.GOODBYE:
            if reply["server"] == link.server:
                _send(link, wire.pack(wire.BYE))
                self._lose(link, "it has ended")
        elif (future := self._questions.get(reply["request"])) is not None and not future.done():
            future.set_result(reply)
        self._changed.set()

    def _welcomed(self, link: Link, welcome: dict[str, Any]) -> None:
        before = link.definition.get("fingerprint")
        if before not in (None, welcome["fingerprint"]):
            self._refuse(
                link,
                f"the server {link.url} came back with another dataset (fingerprint "
                f"{welcome['fingerprint']}) than before ({before}): serve the same definition again, or "
                "begin the epoch anew",
            )
            return
        link.session += 1  # first: memory that the training thread cannot map from now on is of the old one
        link.close_others()
        if welcome["handover"] is not None:
            # In another container, perhaps, it cannot be reached: then arrays come over the socket.
            with contextlib.suppress(OSError, ValueError):
                link.taker = Taker(str(welcome["handover"]), link.identity)
        if welcome["arrays_port"] is not None:
            host = urlsplit(link.url).hostname or ""
            with contextlib.suppress(OSError, OverflowError):  # a firewall keeps other ports, perhaps
                link.direct = DirectReceiver(host, welcome["arrays_port"], link.identity, self._lost_after)
        link.definition, link.server, link.workers = welcome, str(welcome["server"]), int(welcome["workers"])
        for inbox in tuple(link.inboxes.values()):
            inbox.before = inbox.restarts, inbox.reading
        link.is_up, link.lost_since, link.warned = True, None, False
        link.break_all()

    def _pong(self, link: Link, pong: dict[str, Any]) -> None:
        if not link.is_up:
            return
        if pong["server"] != link.server:
            self._lose(link, "it has restarted")
            return
        if not pong["known"]:
            self._lose(link, "it took this trainer for gone")
            return
        there = {slot: (attempt, number) for slot, attempt, number in pong["slots"]}
        for inbox in tuple(link.inboxes.values()):
            attempt = inbox.attempt
            known, number = there.get(inbox.slot, (-1, 0))
            lost = attempt.received < number if known == attempt.number else pong["number"] >= attempt.ping
            if lost and not attempt.broken and attempt.number:
                self._miss(link, attempt)
                inbox.announce()
            if inbox.slot in pong["readings"]:
                inbox.pid, restarts, reading = pong["readings"][inbox.slot]
                inbox.restarts = inbox.before[0] + restarts
                inbox.reading = inbox.before[1] + wire.reading_of(reading)


def _fail(inbox: Inbox, why: str) -> NoReturn:
    inbox.failure = inbox.failure or MpwdsError(why)
    inbox.announce()
    raise Malformed(why)


def _receive_parts(socket: zmq.Socket[bytes], memory: memoryview) -> None:
    for at in range(0, memory.nbytes, wire.PART_NBYTES):
        part = memory[at : at + wire.PART_NBYTES]
        if not socket.rcvmore:
            raise Malformed("a batch without all of its parts")
        if socket.recv_into(part) != part.nbytes:
            raise Malformed("a part of a wrong size")


def _send(link: Link, data: bytes) -> bool:
    try:
        link.socket.send(data, zmq.NOBLOCK)
    except zmq.Again:  # it is away
        return False
    return True


def _shown(link: Link) -> str:
    return f"{' '.join(link.definition['description'])} (fingerprint {link.definition['fingerprint']})"
