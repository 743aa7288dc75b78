"""Asks servers how they are, and for a look at a batch, without taking work from trainers."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Any

import zmq

from mpwds import nest
from mpwds.errors import MpwdsError, ServerLost
from mpwds.feed import keys, wire
from mpwds.loader.engine.local_worker import batch_of
from mpwds.loader.messages.channel import LENGTHS

_LARGEST_NBYTES = 4 << 30
_BRIEFLY_S = 1.0


class Inspector:
    """Asks servers for their figures and for copies of batches.

    Args:
        urls: URLs of the servers, braces expanded.
        folder: Folder with ``client.key_secret`` and ``server.key``, as for ``RemoteLoader``.
        insecure: Ask servers on other machines without keys.
        timeout: Seconds to wait for an answer.

    Attributes:
        silent: URLs of the servers that did not answer when their figures were asked for last.
    """

    def __init__(
        self,
        urls: Sequence[str],
        folder: str | os.PathLike[str] | None = None,
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
        for url in urls:
            socket = self._sockets[url] = self._context.socket(zmq.DEALER)
            socket.identity = b"\1" + secrets.token_bytes(wire.IDENTITY_NBYTES - 1)
            socket.maxmsgsize = _LARGEST_NBYTES
            socket.linger = 0
            socket.ipv6 = True
            try:
                if folder is not None:
                    keys.secure_client(socket, folder)
                socket.connect(url)
            except BaseException:
                self.close()
                raise

    def status(self, timeout: float | None = None) -> list[dict[str, Any]]:
        """The figures of every server that answers (see ``Server.status``); the others are then ``silent``.

        ServerLost if none answers. A server that was silent before is waited for only a second.
        """
        timeout = timeout or self._timeout
        waiting = {url: self._ask(url, wire.STATUS) for url in self._sockets}
        statuses: dict[str, dict[str, Any]] = {}
        before, began = self.silent, time.monotonic()
        while waiting:
            limit = _BRIEFLY_S if waiting.keys() <= set(before) else timeout
            left = began + limit - time.monotonic()
            if left <= 0:
                break
            for url, reply in self._replies(list(waiting), left):
                if reply.get("request") == waiting.get(url):
                    statuses[url] = {**reply["status"], "url": url}
                    del waiting[url]
        self.silent = list(waiting)
        if not statuses:
            raise self._lost(self.silent, timeout)
        return [statuses[url] for url in self._sockets if url in statuses]

    def peek(self, timeout: float | None = None) -> tuple[dict[str, Any], Any]:
        """A copy of the next batch that a worker of any server sends, with its message's fields.

        Arrays are NumPy's, nested as the pipeline made them. ServerLost if none comes in time.
        """
        request = next(self._requests)
        for url in self._sockets:
            self._ask(url, wire.PEEK, request)
        answer = self._answer(list(self._sockets), request, timeout or self._timeout)
        frame, arrays = memoryview(answer["message"]), bytearray(answer["arrays"])
        try:
            envelope_nbytes, _ = LENGTHS.unpack_from(frame)
            fields = nest.unpack(frame[LENGTHS.size : LENGTHS.size + envelope_nbytes])
            return fields, batch_of(fields, arrays, "numpy", allow_pickle=False)
        except (MpwdsError, LookupError, TypeError, ValueError, struct.error) as error:
            raise MpwdsError(f"a server sent a batch that cannot be decoded: {error}") from error

    def close(self) -> None:
        self._context.destroy(0)

    def __enter__(self) -> Inspector:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ask(self, url: str, kind: str, request: int | None = None) -> int:
        request = next(self._requests) if request is None else request
        with contextlib.suppress(zmq.Again):  # it is away, and was asked often enough
            self._sockets[url].send(wire.pack(kind, request=request), zmq.NOBLOCK)
        return request

    def _answer(self, urls: list[str], request: int, timeout: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            for _, reply in self._replies(urls, left):
                if reply.get("request") == request:
                    return reply
        raise self._lost(urls, timeout)

    def _replies(self, urls: list[str], timeout: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """What has arrived from servers, and from which; waits if there is nothing."""
        poller = zmq.Poller()
        for url in urls:
            poller.register(self._sockets[url], zmq.POLLIN)
        arrived = dict(poller.poll(max(1, round(timeout * 1000))))
        for url in urls:
            if self._sockets[url] in arrived:
                reply = wire.unpack_reply(self._sockets[url].recv_multipart()[0])
                if isinstance(reply, dict):
                    yield url, reply

    def _lost(self, urls: list[str], timeout: float) -> ServerLost:
        return ServerLost(
            f"no answer from {', '.join(urls)} within {timeout:g} s: is `mpwds serve` running there, and are "
            "the keys the same?"
        )
