"""Descriptors of shared memory, from a server to a trainer on the same machine, over a Unix socket.

A server listens; each trainer connects and sends its ZeroMQ identity. Before the message that announces a
segment of a worker's arena, the server sends ``[slot, launch]``, the worker process being the slot's
``launch``-th, with two descriptors: the segment's and that of the worker's bell.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Set

from mpwds.errors import MpwdsError
from mpwds.feed import unix_sockets
from mpwds.feed.wire import IDENTITY_NBYTES
from mpwds.loader.processes.processes import receive_fds, send_fds

_TAG = struct.Struct("<QQ")
_DESCRIPTORS = 2
_CREDENTIALS = struct.Struct("3i")  # process, user and group at the other end
_MOST_STRANGERS = 64


class FdSender:
    """The server's end: gives descriptors to trainers that have connected."""

    def __init__(self, drop: Callable[[str, str], None], path: str | None = None) -> None:
        # An abstract name needs no file, but one network namespace alone sees it.
        self.name = f"mpwds-{secrets.token_hex(16)}" if path is None else path
        listener = unix_sockets.listen(_address(self.name), socket.SOCK_SEQPACKET)
        self._files = {} if path is None else {path: os.lstat(path).st_ino}
        listener.setblocking(False)
        self._listener = listener
        self._drop = drop
        self._strangers: list[socket.socket] = []  # that have not told their identity
        self._trainers: dict[bytes, socket.socket] = {}

    def accept(self, known: Set[bytes]) -> None:
        """Accepts trainers that are known, and lets go of those that are no more; never waits."""
        with contextlib.suppress(OSError):  # nobody else is here, or there is no descriptor left for now
            while True:
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                self._strangers.append(connection)
        for connection in tuple(self._strangers):
            try:
                identity = connection.recv(IDENTITY_NBYTES + 1)
            except BlockingIOError:
                continue
            except OSError:
                identity = b""
            self._strangers.remove(connection)
            if identity in known and _is_of_same_user(connection):
                self.forget(identity)
                self._trainers[identity] = connection
                continue
            connection.close()
            if identity and not (identity[:1] == b"\1" and len(identity) == IDENTITY_NBYTES):
                self._drop("malformed", "a connection for shared memory that begins with no identity")
        for connection in self._strangers[:-_MOST_STRANGERS]:
            self._strangers.remove(connection)
            connection.close()
        for identity in self._trainers.keys() - known:
            self.forget(identity)

    def connected(self, identity: bytes) -> bool:
        """True if the trainer of this identity has connected."""
        return identity in self._trainers

    def give(self, identity: bytes, slot: int, launch: int, segment: int, bell: int) -> None:
        """Sends a segment's descriptors. If the trainer is gone, its pings will show it."""
        connection = self._trainers.get(identity)
        if connection is not None:
            with contextlib.suppress(OSError):
                send_fds(connection, _TAG.pack(slot, launch), [segment, bell])

    def forget(self, identity: bytes) -> None:
        connection = self._trainers.pop(identity, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        for connection in (self._listener, *self._strangers, *self._trainers.values()):
            connection.close()
        unix_sockets.remove(self._files)


class FdReceiver:
    """The trainer's end. OSError if the server cannot be reached this way."""

    def __init__(self, name: str, identity: bytes) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        try:
            self._socket.connect(_address(name))
            if not _is_of_same_user(self._socket):
                raise PermissionError("the server runs as another user")
            self._socket.send(identity)
        except OSError:
            self._socket.close()
            raise
        self._arrived: dict[tuple[int, int], deque[tuple[int, int]]] = defaultdict(deque)
        self._lock = threading.Lock()  # one thread takes while another may close

    def take(self, slot: int, launch: int) -> tuple[int, int]:
        """The descriptors of the next segment of a worker, and of its bell; the caller closes them."""
        with self._lock:
            while not self._arrived[slot, launch]:
                try:
                    data, descriptors, _ = receive_fds(self._socket, _TAG.size, _DESCRIPTORS)
                except BlockingIOError:
                    data, descriptors = b"", []
                if len(data) != _TAG.size or len(descriptors) != _DESCRIPTORS:
                    for descriptor in descriptors:
                        os.close(descriptor)
                    raise MpwdsError(
                        f"the server announced shared memory of worker {slot} and did not hand it over: it "
                        "has ended, or this process has no file descriptor left (ulimit -n)"
                    )
                self._arrived[_TAG.unpack(data)].append((descriptors[0], descriptors[1]))
            return self._arrived[slot, launch].popleft()

    def close(self) -> None:
        with self._lock:
            self._socket.close()
            for pairs in self._arrived.values():
                for pair in pairs:
                    for descriptor in pair:
                        os.close(descriptor)
            self._arrived.clear()


def _address(name: str) -> str:
    return name if name.startswith("/") else "\0" + name


def _is_of_same_user(connection: socket.socket) -> bool:
    """Checked at both ends: who shares memory can make the other crash, by cutting it off."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    return int(user) == os.geteuid()
