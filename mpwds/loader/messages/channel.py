"""Messages between trainer and worker over one stream socket: an envelope and a payload.

A message is a frame: two 32-bit lengths, the envelope (``mpwds.nest.pack``), then payload bytes. A sender's
death loses nothing that it sent. File descriptors travel over a second socket pair.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from mpwds import nest
from mpwds.errors import MpwdsError, SharedMemoryError
from mpwds.loader.processes.processes import receive_fds, send_fds

LENGTHS = struct.Struct("<II")
"""Of the envelope and the payload, at the start of a frame."""

_READ_NBYTES = 256 << 10


class ChannelClosed(Exception):
    """The other end of a channel is gone."""


class Message(NamedTuple):
    """The fields of an envelope, a payload, and the whole frame: views that the next receive invalidates."""

    fields: dict[str, Any]
    payload: memoryview
    frame: memoryview = memoryview(b"")


class Channel:
    """One end of a socket pair, taken over, for one thread at a time.

    Methods raise :class:`ChannelClosed` when the other end is gone; :meth:`receive` after its last message.
    """

    def __init__(self, connection: socket.socket) -> None:
        # Makes a context in which send() waits for room.
        self.waiting: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
        connection.setblocking(False)
        self._socket = connection
        self._buffer = bytearray(_READ_NBYTES)
        self._start = 0
        self._end = 0
        self._rest = memoryview(b"")
        self._writable = select.poll()
        self._writable.register(connection, select.POLLOUT)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, fields: dict[str, Any], payload: bytes | bytearray = b"") -> None:
        """Sends a message, and waits while the socket's buffer is full."""
        data = frame_of(fields, payload)
        while data:
            sent = self._send_now(data)
            data = data[sent:]
            if not sent:
                with self.waiting():
                    self._writable.poll()

    @property
    def unsent(self) -> bool:
        return bool(self._rest)

    def try_send(self, fields: dict[str, Any]) -> bool:
        """Sends as much of a message as fits; never waits. Do not mix it with :meth:`send`.

        False if none of it fits now, otherwise :meth:`flush` sends the rest.
        """
        self.flush()
        if self.unsent:
            return False
        data = frame_of(fields)
        sent = self._send_now(data)
        if sent:
            self._rest = data[sent:]
        return sent > 0

    def flush(self) -> None:
        if self._rest:
            self._rest = self._rest[self._send_now(self._rest) :]

    def receive(self) -> Message | None:
        """The next message, or ``None`` if none has arrived whole; never waits."""
        while True:
            needed, available = LENGTHS.size, self._end - self._start
            if available >= needed:
                envelope_nbytes, payload_nbytes = LENGTHS.unpack_from(self._buffer, self._start)
                needed += envelope_nbytes + payload_nbytes
                if available >= needed:
                    frame = memoryview(self._buffer)[self._start : self._start + needed]
                    self._start += needed
                    end = LENGTHS.size + envelope_nbytes
                    return Message(nest.unpack(frame[LENGTHS.size : end], trusted=True), frame[end:], frame)
            if not self._fill(needed):
                return None

    def receive_frames(self, prefix: bytes, most_nbytes: int) -> tuple[bytes, int]:
        """The frames that are here and whose envelopes begin with ``prefix``, unread, and their number."""
        buffer, start, end = self._buffer, self._start, self._end
        at, count = start, 0
        while end - at >= LENGTHS.size and buffer.startswith(prefix, at + LENGTHS.size):
            envelope_nbytes, payload_nbytes = LENGTHS.unpack_from(buffer, at)
            following = at + LENGTHS.size + envelope_nbytes + payload_nbytes
            if following > min(end, start + most_nbytes):
                break
            at, count = following, count + 1
        self._start = at
        return bytes(memoryview(buffer)[start:at]), count

    def close(self) -> None:
        """Closes this end. The other end can still receive what was sent."""
        self._socket.close()

    def _send_now(self, data: memoryview) -> int:
        # MSG_NOSIGNAL: where SIGPIPE is not ignored, a dead worker would be the end of its trainer.
        try:
            return self._socket.send(data, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except (BrokenPipeError, ConnectionResetError):
            raise ChannelClosed from None

    def _fill(self, needed: int) -> bool:
        if self._start == self._end:
            self._start = self._end = 0
        if self._start + needed > len(self._buffer):
            rest = self._buffer[self._start : self._end]
            # A new buffer, not a resized one: views of the last payload may still be alive.
            self._buffer = bytearray(max(needed, _READ_NBYTES))
            self._buffer[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        try:
            nbytes = self._socket.recv_into(memoryview(self._buffer)[self._end :])
        except BlockingIOError:
            return False
        except ConnectionResetError:
            nbytes = 0
        if nbytes == 0:
            raise ChannelClosed
        self._end += nbytes
        return True


def frame_of(fields: dict[str, Any], payload: bytes | bytearray = b"") -> memoryview:
    envelope = nest.pack(fields)
    head = LENGTHS.pack(len(envelope), len(payload)) + envelope
    return memoryview(head + payload if payload else head)


def give_descriptor(connection: socket.socket, descriptor: int) -> None:
    """Worker: sends a file descriptor. If the trainer is gone, that shows at the next message."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        send_fds(connection, b".", [descriptor])


def take_descriptor(connection: socket.socket) -> int:
    """Trainer: receives the descriptor that a message has announced; the caller closes it."""
    data, descriptors, _ = receive_fds(connection, 1, 1)
    if descriptors:
        return descriptors[0]
    if not data:
        raise MpwdsError("a worker announced a memory segment and did not hand it over")
    raise SharedMemoryError(
        "this process has no file descriptor left for a worker's shared memory: raise the limit (ulimit -n), "
        "or use fewer workers"
    )
