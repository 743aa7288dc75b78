"""Arrays in tenbin encoding over ZMQ sockets, one frame or several, and over SCTP sockets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mpwds.errors import TenbinError
from mpwds.tenbin.array import Output
from mpwds.tenbin.kinds import Array
from mpwds.tenbin.lists import Infos, decode_buffer, decode_list, encode_buffer, encode_list

if TYPE_CHECKING:
    import zmq


def zsend_single(
    socket: zmq.Socket[Any], arrays: Sequence[Array], infos: Sequence[str] | None = None
) -> None:
    """Send arrays as one ZMQ frame. Arguments and errors are those of ``encode_into``."""
    socket.send(encode_buffer(arrays, infos))


def zrecv_single(socket: zmq.Socket[Any], infos: Infos = False, *, output: Output = "numpy") -> Any:
    """Receive what ``zsend_single`` sent, as views of the message. As ``decode_buffer`` otherwise."""
    return decode_buffer(socket.recv(copy=False).buffer, infos, output=output)


def zsend_multipart(
    socket: zmq.Socket[Any], arrays: Sequence[Array], infos: Sequence[str] | None = None
) -> None:
    """Send arrays as frames of one ZMQ message, as tensorcom does by default.

    Raises:
        TenbinError: As in ``encode_into``, or there is no array: a message has at least one frame.
    """
    frames = encode_list(arrays, infos)
    if not frames:
        raise TenbinError("a multipart message needs at least one array")
    socket.send_multipart(frames)


def zrecv_multipart(socket: zmq.Socket[Any], infos: Infos = False, *, output: Output = "numpy") -> Any:
    """Receive what ``zsend_multipart`` or tensorcom sent, as views of the message's frames."""
    frames = [frame.buffer for frame in socket.recv_multipart(copy=False)]
    return decode_list(frames, infos, output=output)


def sctp_send(socket: Any, dest: Any, l: Sequence[Array], infos: Sequence[str] | None = None) -> None:  # noqa: E741  # webdataset's name
    """Send arrays as one SCTP message to the address ``dest``, by a socket of the package ``pysctp``.

    Raises:
        TypeError: ``socket`` is another kind of socket.
    """
    _check_sctp(socket)
    socket.sctp_send(bytes(encode_buffer(l, infos)), to=dest)


def sctp_recv(
    socket: Any, infos: Infos = False, maxsize: int = 100_000_000, *, output: Output = "numpy"
) -> Any:
    """Accept a connection and receive what ``sctp_send`` sent, at most ``maxsize`` bytes.

    Arguments and result are otherwise those of ``decode_buffer``.

    Raises:
        TypeError: ``socket`` is another kind of socket.
    """
    _check_sctp(socket)
    connection, _ = socket.accept()
    _, _, data, _ = connection.sctp_recv(maxsize)
    return decode_buffer(data, infos, output=output)


def _check_sctp(socket: Any) -> None:
    if not hasattr(socket, "sctp_send"):
        raise TypeError(
            "tenbin needs an SCTP socket of the package pysctp (sctp.sctpsocket_tcp), which runs on Linux "
            f"kernels with SCTP, got {type(socket).__name__}"
        )
