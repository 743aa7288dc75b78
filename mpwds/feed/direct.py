"""The arrays of batches over a TCP connection of their own, where no keys protect ZeroMQ's either.

ZeroMQ copies what it receives once more, and hands each part from thread to thread. Here the system receives
straight into the block: a third less processor time for large batches. A server listens on a port of its own
choice, which its ``welcome`` names; a trainer connects there and sends its ZeroMQ identity. The arrays of a
data message then come over this connection, behind a header that repeats the message's head. A trainer that
cannot reach the port gets parts over ZeroMQ.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import threading
from collections.abc import Callable, Set
from queue import SimpleQueue

from mpwds.errors import MpwdsError
from mpwds.feed.lobby import Drop, Lobby
from mpwds.feed.wire import PART_NBYTES, Head

_HEADER = struct.Struct("<QQQQ")
_CONNECT_S = 1.0
_PATIENCE_S = 1
_CACHED_NBYTES = 256 << 10


class DirectSender:
    """The server's end; a thread for each trainer sends, and never holds the interpreter lock meanwhile."""

    def __init__(self, host: str, drop: Drop) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.bind((host, 0))
        except OSError:
            listener.close()
            raise
        self.port: int = listener.getsockname()[1]
        self._lobby = Lobby(listener, drop)
        self._trainers: dict[bytes, _Outgoing] = {}

    def accept(self, known: Set[bytes]) -> None:
        """Accepts trainers that are known, and lets go of those that are no more."""
        for identity, connection in self._lobby.arrivals(known):
            self.forget(identity)
            self._trainers[identity] = _Outgoing(connection)
        for identity in self._trainers.keys() - known:
            self.forget(identity)

    def connected(self, identity: bytes) -> bool:
        """Whether the trainer of this identity has connected."""
        return identity in self._trainers

    def send(self, identity: bytes, head: Head, arrays: memoryview) -> None:
        """Sends arrays soon. If the connection is broken, the trainer sees that and starts anew."""
        outgoing = self._trainers.get(identity)
        if outgoing is not None:
            outgoing.queue.put((_HEADER.pack(*head), arrays))

    def forget(self, identity: bytes) -> None:
        outgoing = self._trainers.pop(identity, None)
        if outgoing is not None:
            outgoing.close()

    def close(self) -> None:
        for identity in tuple(self._trainers):
            self.forget(identity)
        self._lobby.close()


class _Outgoing:
    """The connection to one trainer, and the thread that sends on it."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        _keep_in_cache(connection)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self.queue: SimpleQueue[tuple[bytes, memoryview] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mpwds-feed-arrays", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.queue.put(None)
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        while (item := self.queue.get()) is not None:
            # After an error the queue is only emptied, so that blocks go back to their workers.
            with contextlib.suppress(OSError):
                self._connection.sendall(item[0], socket.MSG_MORE)
                self._connection.sendall(item[1])
            del item


class DirectReceiver:
    """The trainer's end. OSError if the server's port cannot be reached."""

    def __init__(self, host: str, port: int, identity: bytes) -> None:
        self._socket = socket.create_connection((host, port), _CONNECT_S)
        self._socket.settimeout(None)
        _keep_in_cache(self._socket)
        # Not settimeout: that would receive what there is, piece by piece.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _PATIENCE_S, 0))
        self._socket.sendall(identity)

    def receive(self, head: Head, memory: memoryview, in_between: Callable[[bool], None]) -> None:
        """Receives the arrays of a data message into ``memory``.

        Calls ``in_between(True)`` every megabyte, and ``in_between(False)`` when nothing comes for a second;
        it may raise to give up.

        Raises:
            MpwdsError: The connection is broken, or other arrays came.
        """
        header = memoryview(bytearray(_HEADER.size))
        self._fill(header, in_between)
        if _HEADER.unpack(header) != tuple(head):
            raise MpwdsError("other arrays came than were announced")
        for at in range(0, head.nbytes, PART_NBYTES):
            self._fill(memory[at : min(at + PART_NBYTES, head.nbytes)], in_between)
            in_between(True)

    def close(self) -> None:
        self._socket.close()

    def _fill(self, memory: memoryview, in_between: Callable[[bool], None]) -> None:
        while memory:
            try:
                received = self._socket.recv_into(memory, 0, socket.MSG_WAITALL)
            except BlockingIOError:
                in_between(False)
                continue
            except OSError as error:
                raise MpwdsError(f"the connection for arrays is broken: {error}") from error
            if not received:
                raise MpwdsError("the connection for arrays was closed")
            memory = memory[received:]


def _keep_in_cache(connection: socket.socket) -> None:
    """Limits a connection's buffers if it stays on this machine: what fits into the cache moves faster."""
    with contextlib.suppress(OSError):  # the peer is gone already
        if ipaddress.ip_address(connection.getpeername()[0]).is_loopback:
            for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                connection.setsockopt(socket.SOL_SOCKET, buffer, _CACHED_NBYTES)
