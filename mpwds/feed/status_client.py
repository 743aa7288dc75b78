"""Asks servers for their status and for copies of batches, without taking work from clients."""

from __future__ import annotations

import contextlib
import itertools
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import zmq

from mpwds import nest
from mpwds.closing import Closes
from mpwds.errors import MpwdsError, ServerLost
from mpwds.feed import keys, wire
from mpwds.feed.keys import StrPath
from mpwds.feed.report import FeedReport, Status, feed_report, lost
from mpwds.interrupts import uninterrupted
from mpwds.loader.engine.local_worker import batch_of
from mpwds.loader.messages.channel import LENGTHS

_LARGEST_NBYTES = 4 << 30
_BRIEFLY_S = 1.0
_STEADY = 10  # readings that a report is about: a single one has few batches where these are large
_ANSWER_S = 3.0  # once another server has answered, or this one before: a report on the others stands still


class StatusClient(Closes):
    """Asks servers for their status and for copies of batches.

    ``urls`` have no braces. ``folder`` has the keys, as for ``RemoteLoader``; without them, servers on other
    machines are asked if ``insecure``. An answer may take ``timeout`` seconds. ``silent`` are the URLs of the
    servers that did not answer when their status was asked for last.
    """

    def __init__(
        self,
        urls: Sequence[str],
        folder: StrPath | None = None,
        *,
        insecure: bool = False,
        timeout: float = 10.0,
    ) -> None:
        for url in urls:
            keys.check_url(url, folder, insecure)
        self._timeout = timeout
        self.silent: list[str] = []
        self._requests = itertools.count(1)
        self._context = zmq.Context()
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        try:
            for url in urls:
                socket = self._sockets[url] = keys.client_socket(self._context, url, folder, _LARGEST_NBYTES)
                socket.connect(url)
        except BaseException:
            self.close()
            raise

    def status(self, timeout: float | None = None) -> list[Status]:
        """The status of every server that answers (see ``Server.status``); the others are then ``silent``.

        ServerLost if none does. Once one has, the others get three seconds, one if they were silent before.
        """
        timeout = timeout or self._timeout
        asked = {url: self._ask(url, wire.STATUS) for url in self._sockets}
        statuses: dict[str, Status] = {}
        began, silent_before = time.monotonic(), set(self.silent)
        for urls, limit_s in ((asked.keys() - silent_before, timeout), (silent_before, _BRIEFLY_S)):
            for url, reply in self._replies({url: asked[url] for url in urls}, began + limit_s):
                statuses[url] = {**reply["status"], "url": url}
        self.silent = [url for url in asked if url not in statuses]
        if not statuses:
            raise self._lost(self.silent, timeout)
        return [statuses[url] for url in asked if url in statuses]

    def peek(self, timeout: float | None = None) -> tuple[dict[str, Any], Any]:
        """A copy of the next batch that a worker of any server sends, with its message's fields.

        Arrays are NumPy's, nested as the pipeline made them. ServerLost if none comes in time.
        """
        timeout = timeout or self._timeout
        asked = {url: self._ask(url, wire.PEEK) for url in self._sockets}
        _, answer = next(self._replies(asked, time.monotonic() + timeout), ("", None))
        if answer is None:
            raise self._lost(list(asked), timeout)
        frame, arrays = memoryview(answer["message"]), bytearray(answer["arrays"])
        try:
            envelope_nbytes, _ = LENGTHS.unpack_from(frame)
            fields = nest.unpack(frame[LENGTHS.size : LENGTHS.size + envelope_nbytes])
            return fields, batch_of(fields, arrays, "numpy", allow_pickle=False)
        except (MpwdsError, LookupError, TypeError, ValueError, struct.error) as error:
            raise MpwdsError(f"a server sent a batch that cannot be decoded: {error}") from error

    def close(self) -> None:
        uninterrupted(self._context.destroy, 0)

    def _ask(self, url: str, kind: str) -> int:
        request = next(self._requests)
        with contextlib.suppress(zmq.Again):  # it is away, and was asked often enough
            self._sockets[url].send(wire.pack(kind, request=request), zmq.NOBLOCK)
        return request

    def _replies(self, asked: dict[str, int], deadline: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the answers to requests with the URLs of their servers, until all came or time is up."""
        poller = zmq.Poller()
        waiting = {self._sockets[url]: url for url in asked}
        for dealer in waiting:
            poller.register(dealer, zmq.POLLIN)
        while waiting:
            left_s = deadline - time.monotonic()
            arrived = poller.poll(max(0, round(left_s * 1000)))
            for dealer, _ in arrived:
                reply = wire.unpack_reply(dealer.recv_multipart()[0])
                if isinstance(reply, dict) and reply.get("request") == asked[waiting[dealer]]:
                    poller.unregister(dealer)
                    deadline = min(deadline, time.monotonic() + _ANSWER_S)
                    yield waiting.pop(dealer), reply
            if left_s <= 0:
                return

    def _lost(self, urls: list[str], timeout: float) -> ServerLost:
        return ServerLost(
            f"no answer from {', '.join(urls)} within {timeout:g} s: is `mpwds serve` running there, and are "
            "the keys the same?"
        )


class StatusSource(Protocol):
    """A feed that commands and the page show. One thread may call ``read`` while another calls ``peek``.

    Its ``name`` is its URLs; ``classes`` are names of its labels, as far as they are known after a reading.
    """

    name: str
    classes: Sequence[str]

    def read(self) -> FeedReport:
        """The report since some calls before; the first call's since the feed started."""

    def peek(self, timeout_s: float) -> Any:
        """A batch that was not shown before; ``TimeoutError`` if none comes in time."""

    def close(self) -> None:
        """Closes the connections. The feed itself goes on."""


class FeedStatus:
    """Feed servers, as a :class:`StatusSource`. Batches are copies: clients get them as well.

    Arguments are those of :class:`StatusClient`.
    """

    def __init__(self, urls: Sequence[str], keys: StrPath | None = None, insecure: bool = False) -> None:
        self.name = ", ".join(urls) if len(urls) < 4 else f"{urls[0]} and {len(urls) - 1} more servers"
        self.classes: Sequence[str] = ()
        self._client = StatusClient(urls, keys, insecure=insecure)
        self._peeking = StatusClient(urls, keys, insecure=insecure)  # sockets belong to one thread
        self._read: deque[Sequence[Status]] = deque(maxlen=_STEADY)
        self._heard: dict[str, tuple[float, Status | None]] = dict.fromkeys(urls, (time.monotonic(), None))

    def read(self) -> FeedReport:
        try:
            now = self._client.status(_ANSWER_S if self._read else None)
        except ServerLost:
            if not self._read:
                raise
            now = []
        named = {tuple(status["classes"]) for status in now}
        self.classes = named.pop() if len(named) == 1 else self.classes if not named else ()
        now_s = time.monotonic()
        self._heard.update((status["url"], (now_s, status)) for status in now)
        away = [(url, now_s - then, last) for url, (then, last) in self._heard.items() if then != now_s]
        oldest_last = [status for reading in reversed(self._read) for status in reading]
        self._read.append(now)
        return feed_report(oldest_last, [*now, *(lost(url, last, seconds) for url, seconds, last in away)])

    def peek(self, timeout_s: float) -> Any:
        try:
            return self._peeking.peek(timeout_s)[1]
        except ServerLost:
            self._peeking.status(timeout_s)  # which raises, too, if a server does not answer at all
            raise TimeoutError(
                f"no worker of {self.name} sent a batch within {timeout_s:g} s: does a trainer read from it?"
            ) from None

    def close(self) -> None:
        self._client.close()
        self._peeking.close()
