"""Sockets in the file system: listening where nobody else does, and removing one's own file only."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Mapping
from typing import Any

import zmq

_BACKLOG = 128


def listen(path: str, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """A socket that listens at a path, in place of the file that a killed process left there.

    Raises ``OSError`` if the path cannot be bound to: ``EADDRINUSE`` if a process listens there, ``EEXIST``
    if the file is not a socket.
    """
    listener = socket.socket(socket.AF_UNIX, kind)
    try:
        try:
            listener.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            _remove_dead(path)
            listener.bind(path)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_dead(path: str) -> None:
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise FileExistsError(errno.EEXIST, "there is a file that is not a socket", path)
    with socket.socket(socket.AF_UNIX) as probe:
        answer = probe.connect_ex(path)  # a socket of another type that is listened to gives EPROTOTYPE
    if answer != errno.ECONNREFUSED:
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), path)
    os.unlink(path)


def bind(zmq_socket: zmq.Socket[Any], url: str) -> dict[str, int]:
    """Binds a ZeroMQ socket, which itself would replace any file. Returns its file, if any, and the inode."""
    path = url.removeprefix("ipc://")
    if path == url or path.startswith(("@", "*")):  # not ipc, or a name that ZeroMQ chooses or needs no file
        zmq_socket.bind(url)
        return {}
    path = os.path.abspath(path)
    listener = listen(path)
    files = {path: os.lstat(path).st_ino}
    zmq_socket.setsockopt(zmq.USE_FD, listener.detach())
    zmq_socket.bind(f"ipc://{path}")
    zmq_socket.setsockopt(zmq.USE_FD, -1)
    return files


def remove(files: Mapping[str, int]) -> None:
    """Removes sockets' files, each unless another one has taken its place."""
    for path, inode in files.items():
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(path).st_ino == inode:
                os.unlink(path)
