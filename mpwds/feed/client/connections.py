"""A trainer's connections to its servers, in a thread that receives while the training step runs.

A thread and not a process, which would have to hand over every batch once more: ZeroMQ receives in its own
thread, and copies without the interpreter lock, of which this thread takes about 20 us for each megabyte.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Container
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout  # another one before Python 3.11
from functools import partial
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from mpwds.errors import MpwdsError, SecurityError, ServerLost
from mpwds.feed import wire
from mpwds.feed.client import addresses, sharing
from mpwds.feed.client.connection import OnServerLoss, RemoteOptions, ServerConnection
from mpwds.feed.definition import title
from mpwds.interrupts import uninterrupted
from mpwds.pipeline.context import Context
from mpwds.sharedmem.arena import EventFd
from mpwds.viewing.wording import counted
from mpwds.warn import warn

_MESSAGES_AT_ONCE = 64
_MOST_MISMATCHES = 3  # the first may come from a server that is about to end
_ASK_S = 60.0
_AGAIN_S = 2.0  # after which a question is asked again
_MOST_SOCKETS = 60_000  # three for each server
_OTHERS_S = 2.0  # that servers which come and go have to answer, after the first of them
_MOST_NOTICES = 32
_SERVE_THE_SAME = "serve the same definition everywhere, with the same Python"

SAY_EVERY_S = 5.0
"""A user who waits for a server is told so this often."""


class ServerConnections:
    """The servers of a loader; :meth:`connect` starts the thread, :meth:`close` ends it.

    ``room(nbytes)`` gives memory for the arrays of a batch. Another thread looks up addresses of servers that
    come and go. A server that is up stays when its address is gone: that may be the look-up's fault.

    Attributes:
        connections: Those to servers that are up or may come. The list is never changed, but replaced.
        epoch: That of the trainer's workers.
        changes: Counts the moments in which servers came or were lost.
        on_loss: What to do if a server is lost: see ``on_server_loss`` of ``RemoteLoader``.
    """

    def __init__(self, options: RemoteOptions, room: Callable[[int], Any]) -> None:
        self.options = options
        here = self._here = Context.current()
        self.notices: deque[str] = deque(maxlen=_MOST_NOTICES)  # for the user
        self._addresses = options.addresses(self.notices.append)
        is_followed = self._addresses.is_followed
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
            "patient": is_followed,
        }
        limits = [limit for limit in (options.server_timeout, options.timeout) if limit is not None]
        self._timeout = min(limits, default=None)
        self._owner = os.getpid()
        self._closing = threading.Event()
        self._wake = EventFd()
        self._outbox: deque[tuple[ServerConnection, bytes]] = deque()
        self._questions: dict[int, Future[dict[str, Any]]] = {}
        self._requests = itertools.count()
        self._changed = threading.Event()
        self.connections: list[ServerConnection] = []
        self.epoch: int | None = None
        self.gone: list[ServerConnection] = []  # whose memory may still be read
        self.changes = 0
        self.on_loss: OnServerLoss = options.on_server_loss or ("move" if is_followed else "wait")
        self._leaves = is_followed and self.on_loss == "move"  # servers that are up, for others
        self._least = options.min_servers or (1 if is_followed else None)
        self._urls = self._addresses.look_up()
        self._threads = [threading.Thread(target=self._run, name="mpwds-feed", daemon=True)]
        if is_followed:
            self._threads.append(threading.Thread(target=self._look_up, name="mpwds-addresses", daemon=True))
        self._context = context = zmq.Context()
        context.max_sockets = _MOST_SOCKETS
        self._connection_to = partial(
            ServerConnection, options=options, context=context, room=room, notices=self.notices
        )
        try:
            self._follow(self._urls)
        except BaseException:
            uninterrupted(self._context.destroy, 0)
            raise

    def _follow(self, urls: list[str]) -> None:
        """Connects to the servers at these URLs that this rank uses, and lets go of others."""
        least = self.options.min_servers or 0
        most = self.options.max_servers or max(sharing.MOST_LINKS, least)
        if self._here.world_size == 1 and not self._addresses.is_followed:
            most = self.options.max_servers or len(urls)
        shares = sharing.shares(urls, self._here.rank, self._here.world_size, most, least)
        used = self._shares = {share.url: share for share in shares}
        kept = [  # those that have not welcomed this trainer are asked anew, for another share
            connection
            for connection in self.connections
            if connection.is_up
            or (connection.url in used and (connection.session or connection.refused))
            or (connection.session and not self._leaves)  # its workers wait for it
        ]
        for connection in kept:
            if connection.url in used:
                connection.share = used[connection.url][1:]
                if connection.session and connection.workers == 0:  # it was another rank's share
                    connection.workers = None
        new = [share for share in shares if share.url not in {connection.url for connection in kept}]
        excess = len(kept) + len(new) - most
        others = [each for each in kept if each.url not in used] if self._leaves else []
        for connection in others[: max(0, excess)]:
            connection.leave("another server takes its place")
            kept.remove(connection)
        del new[max(0, most - len(kept)) :]
        for connection in self.connections:
            if connection not in kept:
                connection.close()
                self.gone.append(connection)
        failed: Exception | None = None
        for share, workers in self._dealt(new):
            try:
                kept.append(self._connection_to(share.url, workers, (share.number, share.ranks)))
            except (zmq.ZMQError, OSError, MpwdsError) as error:
                failed = error
                if not isinstance(error, MpwdsError) and error.errno == errno.EMFILE:
                    failed = MpwdsError(
                        f"with {len(kept)} servers, this process has as many open files as it may: raise the "
                        "limit (ulimit -n) by 5 for each server, or pass max_servers="
                    )
                if not self._addresses.is_followed:
                    raise failed from error
                self.notices.append(f"the server {share.url} is left out: {failed}")  # the others are of use
        if failed is not None and not kept and self._threads[0].ident is None:
            raise failed
        self.connections = kept

    def _dealt(self, new: list[sharing.Share]) -> list[tuple[sharing.Share, int | None]]:
        """The new servers to ask, and for how many workers; see :meth:`_deal_again`, too."""
        wanted, given, servers = self.options.workers, self.options.given, len(new)
        if given:
            return [(share, given[share.url]) for share in new if share.url in given]
        if wanted is None or self._addresses.is_followed:
            return [(share, None) for share in new]
        numbers = [(wanted + servers - 1 - place) // servers for place in range(servers)]
        return [(share, number) for share, number in zip(new, numbers, strict=True) if number]

    def _lacking(self) -> int | None:
        """Workers that a loader with ``workers=`` lacks, of servers that come and go; else ``None``."""
        if self.options.workers is None or not self._addresses.is_followed:
            return None
        return self.options.workers - sum(each.workers or 0 for each in self.connections if each.is_up)

    def _deal_again(self) -> None:
        """Asks the servers that have not answered for equal parts of ``workers=``, until no worker lacks."""
        lacking = self._lacking()
        if lacking is not None and self.options.workers is not None:
            part = -(-self.options.workers // len(self.connections)) if self.connections else 0
            for connection in self.connections:
                if not connection.session:
                    connection.workers = max(0, min(part, lacking))

    def _give_up(self, connection: ServerConnection, served: int) -> None:
        """Leaves workers that are other ranks' share: this rank came when the servers were others."""
        share = self._shares.get(connection.url)
        if not self._leaves or self.options.workers is not None:
            return
        if share is None or share.number >= served:
            if any(each.is_up and each is not connection for each in self.connections):
                connection.leave("another rank needs it")
                connection.workers = 0 if share is None else None  # until it is a share
        elif connection.asked != connection.share:
            connection.lose("another rank needs workers of it")
            connection.workers, connection.tick = None, 0.0  # asked now, the server takes and gives at once

    def slots(self) -> list[tuple[ServerConnection, int]]:
        """The workers of all servers that are up, each as a connection and a slot there."""
        up = [connection for connection in self.connections if connection.is_up]
        return [(connection, slot) for connection in up for slot in range(connection.workers or 0)]

    def first(self) -> ServerConnection:
        """A server, one that is up if there is one."""
        for connection in sorted(self.connections, key=lambda each: not each.is_up):
            return connection
        raise ServerLost(f"there is no address of a server at {self.options.urls} any more")

    def free_gone(self, used: Container[ServerConnection]) -> None:
        """Lets go of servers that are gone, unless workers still use what arrived from them."""
        for connection in [each for each in self.gone if each not in used]:
            self.gone.remove(connection)
            connection.free()

    def connect(self) -> None:
        """Waits until the servers that are needed have welcomed this trainer; closes the connections if not.

        Raises ``ServerLost`` if one did not within ``server_timeout`` or ``timeout`` seconds, ``MpwdsError``
        if one refuses, or the servers have different datasets.
        """
        for thread in self._threads:
            thread.start()
        try:
            self._wait_for_welcomes()
        except BaseException:
            self.close()
            raise

    def _wait_for_welcomes(self) -> None:
        began = time.monotonic()
        enough_at: float | None = None  # when as many as are needed had answered
        say_after_s = SAY_EVERY_S
        gives_up = any if self._least is None else all  # the servers of which this is true
        while True:
            self._changed.clear()
            self.show_notices()
            connections = self.connections
            needed = self._least or len(connections)
            missing = [connection for connection in connections if not connection.is_up]
            refusals = [connection.refused for connection in missing if connection.refused]
            if refusals and len(connections) - len(refusals) < needed:
                raise MpwdsError(refusals[0])
            self._compare()
            waited = time.monotonic() - began
            if connections and len(connections) - len(missing) >= needed:
                enough_at = waited if enough_at is None else enough_at
                silent = any(not (each.heard or each.refused or each.workers == 0) for each in missing)
                if not (self._addresses.is_followed and silent and waited - enough_at < _OTHERS_S):
                    return self._warn_of_few_workers()
            else:
                enough_at = None
            named = ", ".join(f"{connection.url} ({connection.why})" for connection in missing)
            if not connections:
                named = f"{self.options.urls} ({self._addresses.why or 'there is no address'})"
            elif not missing:
                named = f"{self.options.urls} ({len(connections)} of min_servers={needed})"
            if missing and gives_up(each.mismatches >= _MOST_MISMATCHES for each in missing):
                raise ServerLost(f"no server is ready at {named}")
            if self._timeout is not None and waited > self._timeout:
                todo = (
                    "start it with `mpwds serve`, ask for fewer workers=" if missing else "give its address"
                )
                raise ServerLost(
                    f"no server is ready at {named} after {self._timeout:g} s: {todo}, or raise "
                    "server_timeout= and timeout="
                )
            if waited > say_after_s:
                say_after_s = waited + SAY_EVERY_S
                limit = "" if self._timeout is None else f" of {self._timeout:g} s"
                warn(f"waiting for the server at {named}, for {waited:.0f} s{limit}")
            self._changed.wait(0.2)

    def _warn_of_few_workers(self) -> None:
        lacking = self._lacking()
        if lacking is not None and lacking > 0:
            warn(
                f"the servers that answered have {counted(len(self.slots()), 'worker')}, and "
                f"workers={self.options.workers}: the loader begins with these. To wait for more servers, "
                "raise min_servers=; with streams=, those that come later get work"
            )

    def show_notices(self) -> None:
        """Warns of what the threads noticed."""
        while self.notices:
            warn(self.notices.popleft())

    def send(self, connection: ServerConnection, kind: str, **fields: Any) -> None:
        """Sends a command soon. It is lost if the server is; the next ping shows that."""
        if not connection.refused:
            self._outbox.append((connection, wire.pack(kind, **fields)))
            self._wake.ring()

    def ask(self, kind: str, **fields: Any) -> tuple[ServerConnection, dict[str, Any]]:
        """Asks a server, and waits for the answer; asks again, as the question or the server may be lost.

        Raises ``ServerLost`` if no answer comes, ``MpwdsError`` if the server refuses.
        """
        answer_s = _ASK_S if self._timeout is None else min(self._timeout, _ASK_S)
        deadline = time.monotonic() + answer_s
        patience_s = _AGAIN_S
        while True:
            connection = self.first()
            if connection.refused:  # which sends nothing
                raise MpwdsError(connection.refused)
            request = next(self._requests)
            future = self._questions[request] = Future()
            self.send(connection, kind, request=request, **fields)
            try:
                return connection, future.result(min(patience_s, max(0.0, deadline - time.monotonic())))
            except FutureTimeout:
                if time.monotonic() > deadline:
                    why = f"the server {connection.url} did not answer within {answer_s:g} s"
                    raise ServerLost(why) from None
            finally:
                del self._questions[request]
            patience_s *= 2  # it may still be about to answer

    def close(self) -> None:
        """Tells the servers that this trainer leaves. In a fork of the trainer, does nothing."""
        if os.getpid() != self._owner or self._closing.is_set():
            return
        for connection in self.connections:
            if connection.is_up:
                self.send(connection, wire.BYE)
        self._closing.set()
        self._wake.ring()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(10)
        for connection in self.connections:
            connection.close()
        for connection in [*self.connections, *self.gone]:
            connection.free()
        uninterrupted(self._context.term)

    def _compare(self) -> None:
        """Raises if two servers have different datasets."""
        known = [connection for connection in self.connections if connection.definition]
        for connection in known:
            first = known[0]
            if connection.definition["fingerprint"] != first.definition["fingerprint"]:
                raise MpwdsError(
                    f"the servers have different datasets: {first.url} serves {title(first.definition)}, "
                    f"{connection.url} serves {title(connection.definition)}: {_SERVE_THE_SAME}"
                )

    # The receiving thread.

    def _run(self) -> None:
        try:
            self._keep_receiving()
        except Exception as error:  # a trainer that waits for it must hear of that
            for connection in self.connections:
                connection.refuse(f"receiving from servers failed: {type(error).__name__}: {error}")
            self._changed.set()

    def _look_up(self) -> None:
        told = ""
        while not self._closing.wait(addresses.LOOK_EVERY_S):
            try:
                urls = self._addresses.look_up()
            except SecurityError as error:
                if str(error) != told:
                    told = str(error)
                    self.notices.append(told)
                continue
            if urls != self._urls:
                self._urls = urls
                self._wake.ring()

    def _poller(self) -> zmq.Poller:
        poller = zmq.Poller()
        poller.register(self._wake.fileno(), zmq.POLLIN)
        for connection in self.connections:
            poller.register(connection.socket, zmq.POLLIN)
            poller.register(connection.breaks, zmq.POLLIN)
        return poller

    def _keep_receiving(self) -> None:
        poller, urls, were_up = self._poller(), self._urls, list[ServerConnection]()
        looked = time.monotonic()
        while True:
            if urls is not self._urls:
                urls = self._urls
                self._follow(urls)
                poller = self._poller()
            are_up = [connection for connection in self.connections if connection.is_up]
            if are_up != were_up:
                were_up = are_up
                self.changes += 1
            self._deal_again()
            now = time.monotonic()
            for connection in self.connections:
                if now - looked > 2 * wire.PING_S:  # this process stood still: the silence was its own
                    connection.heard += now - looked
                connection.keep_alive(now, self._hello, self.epoch)
            looked = now
            due = min((connection.tick for connection in self.connections), default=now) + wire.PING_S
            poller.poll(max(0, round((due - now) * 1000)))
            self._wake.clear()
            closing = self._closing.is_set()  # read first: what was to be sent before is in the outbox by now
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
                self._hello["members"] = None  # all have met: those that are left go on without the others
                connection.take_data(reply)
            else:
                self._handle(connection, reply)
        except (wire.Malformed, ArithmeticError, LookupError, TypeError, ValueError) as error:
            connection.drop(str(error) or type(error).__name__)
        except MemoryError as error:
            connection.refuse(f"there is no memory for a batch of the server {connection.url}: {error}")
        while dealer.rcvmore:
            dealer.recv_into(bytearray(1))
        return True

    def _handle(self, connection: ServerConnection, reply: dict[str, Any]) -> None:
        kind = reply["kind"]
        if kind == wire.PONG:
            connection.take_pong(reply)
        elif kind == wire.WELCOME:
            known = self._hello["fingerprint"]
            lacking = None if self.options.group else self._lacking()  # a group's workers are what they are
            if lacking is not None and not connection.session and int(reply["workers"]) > lacking:
                connection.send(wire.pack(wire.BYE))  # others were quicker: it is asked for fewer, if any
                connection.heard = connection.tick = 0.0
            elif known in (None, reply["fingerprint"]):
                connection.take_welcome(reply)
                if self._least is not None:  # servers that answer later must have the same
                    self._hello["fingerprint"] = reply["fingerprint"]
            else:  # it was asked before the dataset was known
                connection.send(wire.pack(wire.BYE))
                why = f"the server {connection.url} has another dataset, {title(reply)}, than others"
                self._refuse(connection, f"{why} ({known}): {_SERVE_THE_SAME}")
        elif kind == wire.WAIT:
            connection.why = str(reply["why"])
        elif kind == wire.REFUSED:
            self._refuse(connection, f"the server {connection.url} refuses: {reply['why']}")
        elif kind == wire.NEEDED:
            self._give_up(connection, int(reply["ranks"]))
        elif kind == wire.NOTICE:
            self.notices.append(f"{connection.url}: {reply['text']}")
        elif kind == wire.GOODBYE:
            if reply["server"] == connection.definition.get("server"):
                connection.send(wire.pack(wire.BYE))
                connection.lose("it has ended")
        elif (future := self._questions.get(reply["request"])) is not None and not future.done():
            future.set_result(reply)
        self._changed.set()

    def _refuse(self, connection: ServerConnection, why: str) -> None:
        """Ends a session for good. The user hears of it, unless it is the error of :meth:`connect`."""
        connection.refuse(why)
        if self._least is not None:
            self.notices.append(f"{why}. It gets no work")
