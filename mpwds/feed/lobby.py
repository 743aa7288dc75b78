"""Where trainers connect to a server beside ZeroMQ: for shared memory, or for arrays."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Set

from mpwds.feed.wire import IDENTITY_NBYTES

_MOST_STRANGERS = 64

Drop = Callable[[str, str], None]
"""Counts and logs what a peer sent, for a reason: ``Router.drop``."""


class Lobby:
    """Accepts connections whose trainers tell their identity, and lets go of those that are not known."""

    def __init__(self, listener: socket.socket, drop: Drop) -> None:
        listener.listen(_MOST_STRANGERS)
        listener.setblocking(False)
        self._listener = listener
        self._drop = drop
        self._strangers: dict[socket.socket, tuple[str, bytes]] = {}  # their addresses, and what they said

    def arrivals(self, known: Set[bytes]) -> Iterator[tuple[bytes, socket.socket]]:
        """The known trainers that have connected since the last call; never waits."""
        with contextlib.suppress(OSError):  # nobody else is here, or there is no descriptor left for now
            while True:
                connection, address = self._listener.accept()
                connection.setblocking(False)
                host = str(address[0]) if isinstance(address, tuple) else "this machine"
                self._strangers[connection] = host, b""
        for connection, (host, said) in tuple(self._strangers.items()):
            try:
                more = connection.recv(IDENTITY_NBYTES - len(said))
            except BlockingIOError:
                continue
            except OSError:
                more = b""
            said += more
            is_junk = said[:1] != b"\1"
            if more and len(said) < IDENTITY_NBYTES and not is_junk:
                self._strangers[connection] = host, said
                continue
            del self._strangers[connection]
            if said in known:
                yield said, connection
                continue
            connection.close()
            if said and (is_junk or len(said) < IDENTITY_NBYTES):  # or it is of a trainer that has left again
                what = "a connection beside ZeroMQ's that begins with no trainer's identity"
                self._drop("malformed", f"{what} (from {host})")
        for connection in tuple(self._strangers)[:-_MOST_STRANGERS]:
            del self._strangers[connection]
            connection.close()

    def close(self) -> None:
        for connection in (self._listener, *self._strangers):
            connection.close()
