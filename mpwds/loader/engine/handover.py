"""Handing file descriptors from a worker to its trainer, on a socket pair of their own."""

from __future__ import annotations

import contextlib
import socket
import struct

from mpwds.errors import MpwdsError, SharedMemoryError

_INT = struct.Struct("i")


def give(connection: socket.socket, descriptor: int) -> None:
    """Worker: sends a descriptor. If the trainer is gone, that shows at the next message."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        socket.send_fds(connection, [b"."], [descriptor], socket.MSG_NOSIGNAL)


def take(connection: socket.socket) -> int:
    """Trainer: receives the descriptor that a message has told of; the caller closes it.

    Raises:
        SharedMemoryError: This process has no descriptor left to receive it with.
        MpwdsError: Nothing came.

    Example:
        >>> import os
        >>> trainer, worker = socket.socketpair()
        >>> give(worker, 1)
        >>> os.close(take(trainer))
        >>> trainer.close(), worker.close()
        (None, None)
    """
    # Not socket.recv_fds: it forgets the flags.
    data, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_LEN(_INT.size), socket.MSG_CMSG_CLOEXEC)
    for _, _, content in ancillary:
        if len(content) == _INT.size:
            return int(_INT.unpack(content)[0])
    if not data:
        raise MpwdsError("a worker told of a segment and did not hand it over")
    raise SharedMemoryError(
        "this process has no file descriptor left for a worker's shared memory: raise the limit (ulimit -n), "
        "or use fewer workers"
    )
