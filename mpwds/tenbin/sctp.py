"""Arrays in tenbin encoding as SCTP messages, over sockets of the package ``pysctp``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpwds.tenbin.array import Output
from mpwds.tenbin.kinds import Array
from mpwds.tenbin.lists import Infos, decode_buffer, encode_buffer


def sctp_send(socket: Any, dest: Any, l: Sequence[Array], infos: Sequence[str] | None = None) -> None:  # noqa: E741  # webdataset's name
    """Send arrays as one SCTP message.

    Args:
        socket: A socket of the package ``pysctp``.
        dest: The address to send to.
        l: The arrays.
        infos: As for ``encode_into``.

    Raises:
        TypeError: ``socket`` is another kind of socket.
    """
    _check_sctp(socket)
    socket.sctp_send(bytes(encode_buffer(l, infos)), to=dest)


def sctp_recv(
    socket: Any, infos: Infos = False, maxsize: int = 100_000_000, *, output: Output = "numpy"
) -> Any:
    """Accept a connection and receive what ``sctp_send`` sent. As ``decode_buffer`` otherwise.

    Args:
        socket: A listening socket of the package ``pysctp``.
        infos: As for ``decode_buffer``.
        maxsize: The most bytes of a message.
        output: As for ``decode_buffer``.

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
