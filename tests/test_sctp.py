"""tenbin over SCTP, by Python's sockets and by those of pysctp."""

import contextlib
import os
import socket
import tempfile

import numpy as np
import pytest

from mpwds import tenbin
from mpwds.errors import TenbinError

ARRAYS = [np.arange(3), np.ones((2, 2))]
SCTP = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP)


def has_sctp():
    try:
        socket.socket(*SCTP).close()
    except OSError:
        return False
    return True


class PysctpSocket:
    """What pysctp's ``sctpsocket_tcp`` does, over a socket that keeps messages apart as SCTP does."""

    def __init__(self, connection):
        self._connection = connection
        self.close = connection.close

    def sctp_send(self, message, to):
        self._connection.send(message)

    def accept(self):
        return PysctpSocket(self._connection.accept()[0]), None

    def sctp_recv(self, maxsize):
        return None, 0, self._connection.recv(maxsize), None


@contextlib.contextmanager
def listening_and_sending(kind):
    """A socket that listens, one to send by, and the address to send to."""
    arguments = SCTP if kind == "SCTP" else (socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.socket(*arguments) as listener,
        socket.socket(*arguments) as sender,
    ):
        listener.bind(("127.0.0.1", 0) if kind == "SCTP" else os.path.join(folder, "socket"))
        listener.listen()
        if kind != "SCTP":  # which connects by itself
            sender.connect(listener.getsockname())
        wrap = PysctpSocket if kind == "pysctp" else lambda connection: connection
        yield wrap(listener), wrap(sender), listener.getsockname()


needs_sctp = pytest.mark.skipif(not has_sctp(), reason="the kernel has no SCTP sockets")


@pytest.fixture(params=[pytest.param("SCTP", marks=needs_sctp), "SEQPACKET", "pysctp"])
def kind(request):
    return request.param


def test_a_message_arrives_with_its_names(kind):
    with listening_and_sending(kind) as (listener, sender, address):
        tenbin.sctp_send(sender, address, ARRAYS, infos=["a", "b"])
        sender.close()
        (first, second), names = tenbin.sctp_recv(listener, infos=True)
    assert (first.tolist(), second.tolist(), names) == ([0, 1, 2], [[1, 1], [1, 1]], ["a", "b"])


def test_a_message_that_is_too_large_is_an_error(kind):
    with listening_and_sending(kind) as (listener, sender, address):
        tenbin.sctp_send(sender, address, ARRAYS)
        with pytest.raises(TenbinError, match="more than maxsize=200 bytes"):
            tenbin.sctp_recv(listener, maxsize=200)


def test_what_is_no_tenbin_is_an_error(kind):
    with listening_and_sending(kind) as (listener, sender, address):
        send = sender.sctp_send if kind == "pysctp" else sender.sendto
        send(b"x" * 100, address)
        sender.close()
        with pytest.raises(TenbinError, match="damaged or not tenbin"):
            tenbin.sctp_recv(listener)
