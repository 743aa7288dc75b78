"""A server's ROUTER socket: what arrives is checked, and what is bad is counted and logged."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import zmq

from mpwds.errors import MpwdsError
from mpwds.feed import keys, unix_sockets, wire
from mpwds.interrupts import uninterrupted

logger = logging.getLogger("mpwds.feed")

_MOST_UNSENT = 4096  # messages to one peer; windows keep the trainers far below
_LOG_EVERY_S = 5.0
_LINGER_S = 2.0


class Router:
    """The socket at which trainers reach a server; ``dropped`` counts dropped messages by reason."""

    def __init__(self, bind: str, folder: keys.StrPath | None, insecure: bool, client_timeout: float) -> None:
        keys.check_url(bind.replace(":*", ":0"), folder, insecure)
        if keys.needs_keys(bind) and folder is None:
            logger.warning("%s: anybody who reaches this port can read the data (insecure)", bind)
        self.dropped: Counter[str] = Counter()
        self._logged: dict[str, float] = {}
        with contextlib.ExitStack() as ends:
            context = zmq.Context()
            ends.callback(uninterrupted, context.term)
            self._socket = router = context.socket(zmq.ROUTER)
            ends.callback(router.close, int(_LINGER_S * 1000))
            router.router_mandatory = True
            router.router_handover = True
            # ZeroMQ drops what is longer without a word, and the connection with it.
            router.maxmsgsize = 2 * wire.COMMAND_NBYTES
            router.sndhwm = _MOST_UNSENT
            router.copy_threshold = wire.PART_NBYTES // 4  # a copy is cheaper than to hear that all was sent
            # Or memory that is sent to a lost machine would stay in use.
            wire.notice_lost_machines(router, client_timeout)
            router.ipv6 = "[" in bind
            refused = ends.enter_context(keys.secured_server(context, router, folder))
            self.handshakes = keys.Handshakes(router, refused)
            ends.callback(self.handshakes.close)
            try:
                ends.callback(unix_sockets.remove, unix_sockets.bind(router, bind))
            except (zmq.ZMQError, OSError) as error:
                raise MpwdsError(f"cannot serve at {bind}: {why_not(error)}") from None
            endpoint: Any = router.last_endpoint
            self.url: str = endpoint.decode().rstrip("\0")
            self._ends = ends.pop_all()

    def fileno(self) -> int:
        """A descriptor that tells of changes only: look at ``has_news`` before waiting for it."""
        return int(self._socket.fd)

    @property
    def has_news(self) -> bool:
        """True if a command has arrived."""
        return bool(int(self._socket.events) & zmq.POLLIN)

    def receive(self, handle: Callable[[bytes, dict[str, Any], str], None]) -> bool:
        """Has one command handled, with its client's identity and address; false if none has arrived."""
        try:
            identity = self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return False
        frame = self._socket.recv(copy=False)
        frames = 1
        while self._socket.rcvmore:
            self._socket.recv_into(bytearray(1))
            frames += 1
        address = _address(frame)
        if identity.startswith(b"\0"):  # ZeroMQ named it, which it does with old connections, too
            why = "a client that sets no identity, or a connection that its client has replaced"
            self.drop("no identity", f"{why} (from {address})")
            return True
        try:
            if frames > 1:
                raise wire.Malformed(f"a command of {frames} frames: it must be one")
            if len(identity) != wire.IDENTITY_NBYTES:
                raise wire.Malformed(
                    f"an identity of {len(identity)} bytes: it must have {wire.IDENTITY_NBYTES}"
                )
            handle(identity, wire.unpack_command(frame.buffer), address)
        except wire.Malformed as error:
            self.drop("malformed", f"{error} (from {address})")
        except Exception as error:  # no client may stop the server
            self.drop("failed", f"{type(error).__name__}: {error} (from {address})")
        return True

    def reply(self, identity: bytes, kind: str, **fields: Any) -> None:
        self._send(identity, [wire.pack(kind, **fields)])

    def refuse(self, identity: bytes, why: str) -> None:
        """Tells a client why it is not served, and logs that."""
        self.warn("refused", "refused: %s", why)
        self.reply(identity, wire.REFUSED, why=why)

    def send(self, identity: bytes, head: wire.DataHeader, frames: bytes, arrays: memoryview | None) -> bool:
        """Sends a data message, with arrays in parts if there are any; false if the client is gone."""
        parts: list[Any] = []
        if arrays is not None:
            step = wire.PART_NBYTES
            parts = [arrays[at : at + step] for at in range(0, arrays.nbytes, step)]
        return self._send(identity, [wire.pack_head(head), frames, *parts])

    def send_copy(self, identity: bytes, kind: str, **fields: Any) -> zmq.MessageTracker | None:
        """Sends a large reply, and tells when it was sent; ``None`` if it cannot be."""
        with contextlib.suppress(zmq.ZMQError, ValueError):  # the client is gone, or 4 GiB are too much
            message = [identity, wire.pack(kind, **fields)]
            return self._socket.send_multipart(message, zmq.NOBLOCK, copy=False, track=True)
        return None

    def drop(self, reason: str, what: str) -> None:
        """Counts a bad message, and logs it."""
        self.dropped[reason] += 1
        self.warn(reason, "dropped message %d (%s): %s", self.dropped[reason], reason, what)

    def warn(self, reason: str, message: str, *arguments: object) -> None:
        """Logs what a peer caused, unless another message for the same reason was logged just now."""
        now = time.monotonic()
        if now - self._logged.get(reason, -_LOG_EVERY_S) >= _LOG_EVERY_S:
            self._logged[reason] = now
            logger.warning(message, *arguments)

    def close(self) -> None:
        self._ends.close()

    def _send(self, identity: bytes, frames: list[Any]) -> bool:
        try:
            self._socket.send_multipart([identity, *frames], zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False  # it is gone, or reads nothing: its pings will show whether it comes back
        return True


def _address(frame: zmq.Frame) -> str:
    try:
        return str(frame.get("Peer-Address"))
    except (zmq.ZMQError, AttributeError):
        return "this machine"


def why_not(error: zmq.ZMQError | OSError) -> str:
    """Explains why an address cannot be bound to, and what to do."""
    if error.errno == zmq.EADDRINUSE:
        return "another server is running there already (the address is in use)"
    if isinstance(error, FileExistsError):
        return f"{error.filename} is there and is not a socket: remove it, or choose another PATH"
    reason = error if error.errno is None else zmq.strerror(error.errno)
    return f"{reason}. HOST must be an address of this machine, or 0.0.0.0; PATH must lie in a folder"
