"""A relay of TCP connections that breaks them on request: bytes under way are lost."""

import contextlib
import select
import socket
import threading


class Proxy:
    """Listens at ``url`` and passes everything on to the port of another URL.

    Attributes:
        answer: What it says to the next connection in place of passing it on, as another program would.
    """

    def __init__(self, target):
        host, _, port = target.removeprefix("tcp://").rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.answer = b""
        self._pairs = {}
        self._break, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def break_connections(self):
        """Closes all connections, with what they hold."""
        self._break.set()

    def close(self):
        self._closing.set()
        self._thread.join()

    def _run(self):
        while not self._closing.is_set():
            if self._break.is_set():
                self._break.clear()
                self._close_all()
            for ready in select.select([self._listener, *self._pairs], [], [], 0.02)[0]:
                if ready is self._listener:
                    self._connect(ready.accept()[0])
                elif ready in self._pairs:
                    self._pass_on(ready)
        self._close_all()
        self._listener.close()

    def _connect(self, ours):
        if self.answer:
            with contextlib.suppress(OSError):
                ours.sendall(self.answer)
            ours.close()
            self.answer = b""
            return
        try:
            theirs = socket.create_connection(self._target)
        except OSError:
            ours.close()
            return
        self._pairs[ours], self._pairs[theirs] = theirs, ours

    def _pass_on(self, ready):
        other = self._pairs[ready]
        data = b""
        with contextlib.suppress(OSError):
            data = ready.recv(1 << 16)
            other.sendall(data)
        if not data:
            for end in (ready, other):
                del self._pairs[end]
                end.close()

    def _close_all(self):
        for end in self._pairs:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._pairs.clear()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()
