"""A trainer's connections to its servers, in a thread that receives while the training step runs.

A thread and not a process: ZeroMQ receives in a thread of its own, and copies a part into its block without
the interpreter lock, so this thread takes about 20 us of it for each megabyte. A process would have to hand
over every batch once more.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NoReturn

import zmq
from zmq.utils.monitor import recv_monitor_message

from mpwds.errors import MpwdsError, ServerLost
from mpwds.feed import wire
from mpwds.feed.trainer.links import Arrival, Inbox, Link, connect
from mpwds.feed.wire import Head, Malformed
from mpwds.sharedmem.bell import Bell
from mpwds.viewing.wording import size
from mpwds.warn import warn

_MESSAGES_AT_ONCE = 64
_MOST_MISMATCHES = 3  # the first may come from a server that is about to end
_ASK_S = 60.0
_MOST_WINDOWS = 4  # that an attempt may bring before any of it is used

SAY_EVERY_S = 5.0
"""A user who waits for a server is told so this often."""


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
        self.most_nbytes = max_batch_bytes
        self._owner = os.getpid()
        self._context = zmq.Context()
        self._closing = False
        self._wake = Bell()
        self._outbox: deque[tuple[Link, bytes]] = deque()
        self._questions: dict[int, Future[dict[str, Any]]] = {}
        self._requests = itertools.count()
        self._changed = threading.Event()
        self.links: list[Link] = []
        urls = urls if workers is None else urls[:workers]
        self._thread = threading.Thread(target=self._run, name="mpwds-feed", daemon=True)
        try:
            for number, url in enumerate(urls):
                share = None if workers is None else (workers + len(urls) - 1 - number) // len(urls)
                self.links.append(connect(self._context, url, share, folder, max_batch_bytes, lost_after))
        except BaseException:
            self._context.destroy(0)
            raise

    def connect(self, timeout: float | None) -> None:
        """Waits until every server has welcomed this trainer.

        Raises:
            ServerLost: One did not within ``timeout`` seconds.
            MpwdsError: One refuses, or the servers have different datasets.
        """
        self._answer_s = _ASK_S if timeout is None else min(timeout, _ASK_S)
        self._thread.start()
        began = time.monotonic()
        say_after_s = SAY_EVERY_S
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
            if any(link.mismatches >= _MOST_MISMATCHES for link in missing):
                raise ServerLost(f"no server is ready at {named}")
            if timeout is not None and waited > timeout:
                raise ServerLost(
                    f"no server is ready at {named} after {timeout:g} s: start it with `mpwds serve`, ask "
                    "for fewer workers=, or raise server_timeout= and timeout="
                )
            if waited > say_after_s:
                say_after_s = waited + SAY_EVERY_S
                warn(f"waiting for the server at {named}, for {waited:.0f} s")
            self._changed.wait(0.2)

    def send(self, link: Link, kind: str, **fields: Any) -> None:
        """Sends a command soon. It is lost if the server is; the next ping shows that."""
        if not link.refused:
            self._outbox.append((link, wire.pack(kind, **fields)))
            self._wake.ring()

    def ask(self, link: Link, kind: str, **fields: Any) -> dict[str, Any]:
        """Sends a question and waits for the answer; ServerLost if none comes, MpwdsError if it refuses."""
        if link.refused:  # which sends nothing
            raise MpwdsError(link.refused)
        request = next(self._requests)
        future = self._questions[request] = Future()
        self.send(link, kind, request=request, **fields)
        try:
            return future.result(self._answer_s)
        except TimeoutError:
            raise ServerLost(f"the server {link.url} did not answer within {self._answer_s:g} s") from None
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
            link.close()
        self._context.term()

    def _compare(self) -> None:
        """Raises if two servers have different datasets."""
        known = [link for link in self.links if link.definition]
        for link in known:
            first = known[0]
            if link.definition["fingerprint"] != first.definition["fingerprint"]:
                raise MpwdsError(
                    f"the servers have different datasets: {first.url} serves {first.dataset}, {link.url} "
                    f"serves {link.dataset}: serve the same definition everywhere, with the same Python"
                )

    # The receiving thread.

    def _run(self) -> None:
        try:
            self._keep_receiving()
        except Exception as error:  # a trainer that waits for it must hear of that
            for link in self.links:
                link.refuse(f"receiving from servers failed: {type(error).__name__}: {error}")
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
                link.keep_alive(now, self._hello)
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
            link.send(data)

    def _look_for_break(self, link: Link) -> None:
        """Ends a session that has lost its connection, if the server has blocks in messages that are lost.

        Otherwise pings show what was lost, if anything, when the connection is there again.
        """
        has_broken = False
        while int(link.breaks.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            event = recv_monitor_message(link.breaks)["event"]
            if event == zmq.EVENT_DISCONNECTED:
                has_broken, link.is_connected = True, False
            else:
                link.note_handshake(event)
        while has_broken and self._receive(link):
            pass  # it may have said goodbye before
        if has_broken and link.is_up and link.taker is not None:
            link.lose("its connection broke")

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
        except (Malformed, ArithmeticError, LookupError, TypeError, ValueError) as error:
            link.drop(str(error) or type(error).__name__)
        except MemoryError as error:
            link.refuse(f"there is no memory for a batch of the server {link.url}: {error}")
        while socket.rcvmore:
            socket.recv_into(bytearray(1))
        return True

    def _receive_data(self, link: Link, head: Head) -> None:
        socket = link.socket
        inbox = link.inboxes.get(head.slot)
        if inbox is None or not socket.rcvmore:
            raise Malformed("data of an unknown slot, or without messages")
        frames = socket.recv()
        nbytes = len(frames) + head.nbytes
        if max(len(frames), head.nbytes) > self.most_nbytes:
            _fail(inbox, self.too_large(link, nbytes))
        attempt = inbox.attempt
        is_old = head.attempt != attempt.number
        if is_old and link.taker is None:  # it carries no block that must be handed back
            return
        if attempt.received_nbytes - attempt.used_nbytes > _MOST_WINDOWS * inbox.window:
            _fail(inbox, f"the server {link.url} sends more than it was asked for: is it one of mpwds?")
        arrays = self._receive_arrays(link, head) if head.nbytes else None
        if socket.rcvmore:
            raise Malformed("a batch with more parts than its head tells")
        if not is_old:
            if head.number != attempt.received:  # those behind the gap will be sent again, too
                link.miss(inbox, attempt)
                return
            attempt.received += 1
            attempt.received_nbytes += nbytes
        inbox.messages.append(Arrival(link.session, head.attempt, frames, arrays))
        inbox.announce()

    def too_large(self, link: Link, nbytes: int) -> str:
        """What to say of a batch that is larger than the trainer accepts."""
        return (
            f"the server {link.url} sent a batch of {size(nbytes)}: raise max_batch_bytes= "
            f"({size(self.most_nbytes)}) to accept it"
        )

    def _receive_arrays(self, link: Link, head: Head) -> Any:
        arrays = self._room(head.nbytes)
        memory = memoryview(arrays if not hasattr(arrays, "numpy") else arrays.numpy()).cast("B")
        _receive_parts(link.socket, memory[: head.nbytes])
        return arrays

    def _handle(self, link: Link, reply: dict[str, Any]) -> None:
        kind = reply["kind"]
        if kind == wire.PONG:
            link.take_pong(reply)
        elif kind == wire.WELCOME:
            link.take_welcome(reply)
        elif kind == wire.WAIT:
            link.why = str(reply["why"])
        elif kind == wire.REFUSED:
            link.refuse(f"the server {link.url} refuses: {reply['why']}")
        elif kind == wire.NOTICE:
            link.notices.append(f"{link.url}: {reply['text']}")
        elif kind == wire.GOODBYE:
            if reply["server"] == link.server:
                link.send(wire.pack(wire.BYE))
                link.lose("it has ended")
        elif (future := self._questions.get(reply["request"])) is not None and not future.done():
            future.set_result(reply)
        self._changed.set()


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
