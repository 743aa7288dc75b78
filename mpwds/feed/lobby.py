"""Where trainers connect to a server beside ZeroMQ: for shared memory, or for arrays."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Set

from mpwds.feed.wire import IDENTITY_NBYTES

_MOST_STRANGERS = 64


class Lobby:
    """Accepts connections whose trainers tell their identity, and lets go of those that are not known."""

    def __init__(self, listener: socket.socket) -> None:
        listener.listen(_MOST_STRANGERS)
        listener.setblocking(False)
        self._listener = listener
        self._strangers: list[socket.socket] = []

    def arrivals(self, known: Set[bytes]) -> Iterator[tuple[bytes, socket.socket]]:
        """The known trainers that have connected since the last call; never waits."""
        with contextlib.suppress(OSError):  # nobody else is here, or there is no descriptor left for now
            while True:
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                self._strangers.append(connection)
        for connection in tuple(self._strangers):
            try:
                said = connection.recv(IDENTITY_NBYTES, socket.MSG_PEEK)
                if 0 < len(said) < IDENTITY_NBYTES:
                    continue
                said = connection.recv(IDENTITY_NBYTES)
            except BlockingIOError:
                continue
            except OSError:
                said = b""
            self._strangers.remove(connection)
            if said in known:
                yield said, connection
            else:
                connection.close()
        for connection in self._strangers[:-_MOST_STRANGERS]:
            self._strangers.remove(connection)
            connection.close()

    def close(self) -> None:
        for connection in (self._listener, *self._strangers):
            connection.close()
