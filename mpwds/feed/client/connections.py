"""A trainer's connections to its servers, in a thread that receives while the training step runs.

A thread and not a process: ZeroMQ receives in a thread of its own, and copies a part into its block without
the interpreter lock, so this thread takes about 20 us of it for each megabyte. A process would have to hand
over every batch once more.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NoReturn

import zmq
from zmq.utils.monitor import recv_monitor_message

from mpwds.errors import MpwdsError, ServerLost
from mpwds.feed import wire
from mpwds.feed.client.connection import ReceivedMessage, ReceiveQueue, RemoteOptions, ServerConnection
from mpwds.pipeline.context import Context
from mpwds.sharedmem.arena import EventFd
from mpwds.viewing.wording import size
from mpwds.warn import warn

_MESSAGES_AT_ONCE = 64
_MOST_MISMATCHES = 3  # the first may come from a server that is about to end
_ASK_S = 60.0
_MOST_WINDOWS = 4  # that an attempt may bring before any of it is used

SAY_EVERY_S = 5.0
"""A user who waits for a server is told so this often."""


class ServerConnections:
    """The servers of a loader; :meth:`connect` starts the thread, :meth:`close` ends it.

    A number of workers is dealt to the servers. ``room(nbytes)`` gives memory for the arrays of a batch.
    """

    def __init__(self, options: RemoteOptions, room: Callable[[int], Any]) -> None:
        self.options = options
        here = Context.current()
        self._hello = {
            "versions": [wire.VERSION],
            "name": f"{socket.gethostname()}:{os.getpid()}",
            "rank": here.rank,
            "world_size": here.world_size,
            "fingerprint": options.fingerprint,
            "host": wire.machine() if options.shared_memory else "",
            "group": options.group,
            "members": options.members,
            "max_lag": options.max_lag,
        }
        limits = [limit for limit in (options.server_timeout, options.timeout) if limit is not None]
        self._timeout = min(limits, default=None)
        self._room = room
        self._owner = os.getpid()
        self._context = zmq.Context()
        self._closing = False
        self._wake = EventFd()
        self._outbox: deque[tuple[ServerConnection, bytes]] = deque()
        self._questions: dict[int, Future[dict[str, Any]]] = {}
        self._requests = itertools.count()
        self._changed = threading.Event()
        self.connections: list[ServerConnection] = []
        workers = options.workers
        urls = options.expanded()[:workers]
        self._thread = threading.Thread(target=self._run, name="mpwds-feed", daemon=True)
        try:
            for number, url in enumerate(urls):
                share = None if workers is None else (workers + len(urls) - 1 - number) // len(urls)
                self.connections.append(ServerConnection(url, share, options, self._context))
        except BaseException:
            self._context.destroy(0)
            raise

    def connect(self) -> None:
        """Waits until every server has welcomed this trainer; closes the connections if one does not.

        Raises ``ServerLost`` if one did not within ``server_timeout`` or ``timeout`` seconds, ``MpwdsError``
        if one refuses, or the servers have different datasets.
        """
        self._thread.start()
        try:
            self._wait_for_welcomes()
        except BaseException:
            self.close()
            raise

    def _wait_for_welcomes(self) -> None:
        began = time.monotonic()
        say_after_s = SAY_EVERY_S
        while True:
            self._changed.clear()
            missing = [connection for connection in self.connections if not connection.is_up]
            for connection in self.connections:
                if connection.refused:
                    raise MpwdsError(connection.refused)
            self._compare()
            if not missing:
                return
            waited = time.monotonic() - began
            named = ", ".join(f"{connection.url} ({connection.why})" for connection in missing)
            if any(connection.mismatches >= _MOST_MISMATCHES for connection in missing):
                raise ServerLost(f"no server is ready at {named}")
            if self._timeout is not None and waited > self._timeout:
                raise ServerLost(
                    f"no server is ready at {named} after {self._timeout:g} s: start it with `mpwds serve`, "
                    "ask for fewer workers=, or raise server_timeout= and timeout="
                )
            if waited > say_after_s:
                say_after_s = waited + SAY_EVERY_S
                warn(f"waiting for the server at {named}, for {waited:.0f} s")
            self._changed.wait(0.2)

    def send(self, connection: ServerConnection, kind: str, **fields: Any) -> None:
        """Sends a command soon. It is lost if the server is; the next ping shows that."""
        if not connection.refused:
            self._outbox.append((connection, wire.pack(kind, **fields)))
            self._wake.ring()

    def ask(self, connection: ServerConnection, kind: str, **fields: Any) -> dict[str, Any]:
        """Sends a question and waits for the answer; ServerLost if none comes, MpwdsError if it refuses."""
        if connection.refused:  # which sends nothing
            raise MpwdsError(connection.refused)
        request = next(self._requests)
        future = self._questions[request] = Future()
        self.send(connection, kind, request=request, **fields)
        answer_s = _ASK_S if self._timeout is None else min(self._timeout, _ASK_S)
        try:
            return future.result(answer_s)
        except TimeoutError:
            raise ServerLost(f"the server {connection.url} did not answer within {answer_s:g} s") from None
        finally:
            del self._questions[request]

    def close(self) -> None:
        """Tells the servers that this trainer leaves. In a fork of the trainer, does nothing."""
        if os.getpid() != self._owner or self._closing:
            return
        for connection in self.connections:
            if connection.is_up:
                self.send(connection, wire.BYE)
        self._closing = True
        self._wake.ring()
        if self._thread.ident is not None:
            self._thread.join(10)
        for connection in self.connections:
            connection.close()
        self._context.term()

    def _compare(self) -> None:
        """Raises if two servers have different datasets."""
        known = [connection for connection in self.connections if connection.definition]
        for connection in known:
            first = known[0]
            if connection.definition["fingerprint"] != first.definition["fingerprint"]:
                raise MpwdsError(
                    f"the servers have different datasets: {first.url} serves {first.dataset}, "
                    f"{connection.url} serves {connection.dataset}: serve the same definition everywhere, "
                    "with the same Python"
                )

    # The receiving thread.

    def _run(self) -> None:
        try:
            self._keep_receiving()
        except Exception as error:  # a trainer that waits for it must hear of that
            for connection in self.connections:
                connection.refuse(f"receiving from servers failed: {type(error).__name__}: {error}")
            self._changed.set()

    def _keep_receiving(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake.fileno(), zmq.POLLIN)
        for connection in self.connections:
            poller.register(connection.socket, zmq.POLLIN)
            poller.register(connection.breaks, zmq.POLLIN)
        looked = time.monotonic()
        while True:
            now = time.monotonic()
            for connection in self.connections:
                if now - looked > 2 * wire.PING_S:  # this process stood still: the silence was its own
                    connection.heard += now - looked
                connection.keep_alive(now, self._hello)
            looked = now
            wait_s = min(connection.tick for connection in self.connections) + wire.PING_S - now
            poller.poll(max(0, round(wait_s * 1000)))
            self._wake.clear()
            closing = self._closing  # read first: what was to be sent before is in the outbox by now
            while self._outbox:
                connection, data = self._outbox.popleft()
                connection.send(data)
            if closing:
                return
            for connection in self.connections:
                for _ in range(_MESSAGES_AT_ONCE):
                    if not self._receive(connection):
                        break
                self._look_for_break(connection)

    def _look_for_break(self, connection: ServerConnection) -> None:
        """Ends a session that has lost its connection, if the server has blocks in messages that are lost.

        Otherwise pings show what was lost, if anything, when the connection is there again.
        """
        has_broken = False
        while int(connection.breaks.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            event = recv_monitor_message(connection.breaks)["event"]
            if event == zmq.EVENT_DISCONNECTED:
                has_broken, connection.is_connected = True, False
            else:
                connection.note_handshake(event)
        while has_broken and self._receive(connection):
            pass  # it may have said goodbye before
        if has_broken and connection.is_up and connection.fd_receiver is not None:
            connection.lose("its connection broke")

    def _receive(self, connection: ServerConnection) -> bool:
        """Receives one message, if one is there."""
        dealer = connection.socket
        try:
            first = dealer.recv(zmq.NOBLOCK)
        except zmq.Again:
            return False
        connection.heard = time.monotonic()
        try:
            reply = wire.unpack_reply(first)
            if isinstance(reply, wire.DataHeader):
                self._receive_data(connection, reply)
            else:
                self._handle(connection, reply)
        except (wire.Malformed, ArithmeticError, LookupError, TypeError, ValueError) as error:
            connection.drop(str(error) or type(error).__name__)
        except MemoryError as error:
            connection.refuse(f"there is no memory for a batch of the server {connection.url}: {error}")
        while dealer.rcvmore:
            dealer.recv_into(bytearray(1))
        return True

    def _receive_data(self, connection: ServerConnection, head: wire.DataHeader) -> None:
        dealer = connection.socket
        queue = connection.queues.get(head.slot)
        if queue is None or not dealer.rcvmore:
            raise wire.Malformed("data of an unknown slot, or without messages")
        frames = dealer.recv()
        nbytes = len(frames) + head.nbytes
        if max(len(frames), head.nbytes) > self.options.max_batch_bytes:
            _fail(queue, self.too_large(connection, nbytes))
        attempt = queue.attempt
        is_old = head.attempt != attempt.number
        if is_old and connection.fd_receiver is None:  # it carries no block that must be handed back
            return
        if attempt.received_nbytes - attempt.used_nbytes > _MOST_WINDOWS * queue.window:
            _fail(queue, f"the server {connection.url} sends more than it was asked for: is it one of mpwds?")
        arrays = self._receive_arrays(connection, head) if head.nbytes else None
        if dealer.rcvmore:
            raise wire.Malformed("a batch with more parts than its head tells")
        if not is_old:
            if head.number != attempt.received:  # messages after the gap will be sent again, too
                connection.miss(queue, attempt)
                return
            attempt.received += 1
            attempt.received_nbytes += nbytes
        queue.messages.append(ReceivedMessage(connection.session, head.attempt, frames, arrays))
        queue.announce()

    def too_large(self, connection: ServerConnection, nbytes: int) -> str:
        """The text of an error: a batch is larger than the client accepts."""
        return (
            f"the server {connection.url} sent a batch of {size(nbytes)}: raise max_batch_bytes= "
            f"({size(self.options.max_batch_bytes)}) to accept it"
        )

    def _receive_arrays(self, connection: ServerConnection, head: wire.DataHeader) -> Any:
        arrays = self._room(head.nbytes)
        memory = memoryview(arrays if isinstance(arrays, ctypes.Array) else arrays.numpy()).cast("B")
        for at in range(0, head.nbytes, wire.PART_NBYTES):
            part = memory[at : min(at + wire.PART_NBYTES, head.nbytes)]
            if not connection.socket.rcvmore:
                raise wire.Malformed("a batch without all of its parts")
            if connection.socket.recv_into(part) != part.nbytes:
                raise wire.Malformed("a part of a wrong size")
        return arrays

    def _handle(self, connection: ServerConnection, reply: dict[str, Any]) -> None:
        kind = reply["kind"]
        if kind == wire.PONG:
            connection.take_pong(reply)
        elif kind == wire.WELCOME:
            connection.take_welcome(reply)
        elif kind == wire.WAIT:
            connection.why = str(reply["why"])
        elif kind == wire.REFUSED:
            connection.refuse(f"the server {connection.url} refuses: {reply['why']}")
        elif kind == wire.NOTICE:
            connection.notices.append(f"{connection.url}: {reply['text']}")
        elif kind == wire.GOODBYE:
            if reply["server"] == connection.server:
                connection.send(wire.pack(wire.BYE))
                connection.lose("it has ended")
        elif (future := self._questions.get(reply["request"])) is not None and not future.done():
            future.set_result(reply)
        self._changed.set()


def _fail(queue: ReceiveQueue, why: str) -> NoReturn:
    queue.failure = queue.failure or MpwdsError(why)
    queue.announce()
    raise wire.Malformed(why)
