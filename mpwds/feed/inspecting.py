"""Asks servers how they are, and for a look at a batch, without taking work from trainers."""

from __future__ import annotations

import itertools
import os
import secrets
import struct
import time
from collections.abc import Sequence
from typing import Any

import zmq

from mpwds import nest
from mpwds.errors import MpwdsError, ServerLost
from mpwds.feed import keys, wire
from mpwds.loader.engine.channel import LENGTHS
from mpwds.loader.engine.receiving import batch_of

_LARGEST_NBYTES = 4 << 30


class Inspector:
    """Asks servers for their figures and for copies of batches.

    Args:
        urls: URLs of the servers, braces expanded.
        folder: Folder with ``client.key_secret`` and ``server.key``, as for ``RemoteLoader``.
        insecure: Ask servers on other machines without keys.
        timeout: Seconds to wait for an answer.
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

    def status(self) -> list[dict[str, Any]]:
        """The figures of every server (see ``Server.status``); ServerLost names one that does not answer."""
        asked = [(url, self._ask(url, wire.STATUS)) for url in self._sockets]
        statuses = [self._answer([url], request, self._timeout)["status"] for url, request in asked]
        return [{**status, "url": url} for status, (url, _) in zip(statuses, asked, strict=True)]

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
        self._sockets[url].send(wire.pack(kind, request=request))
        return request

    def _answer(self, urls: list[str], request: int, timeout: float) -> dict[str, Any]:
        poller = zmq.Poller()
        for url in urls:
            poller.register(self._sockets[url], zmq.POLLIN)
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            for socket, _ in poller.poll(max(1, round(left * 1000))):
                try:
                    reply = wire.unpack_reply(socket.recv_multipart()[0])
                except wire.Malformed:
                    continue
                if isinstance(reply, dict) and reply.get("request") == request:
                    return reply
        raise ServerLost(f"no answer from {', '.join(urls)} within {timeout:g} s: is `mpwds serve` running?")
