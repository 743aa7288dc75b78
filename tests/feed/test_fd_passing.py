"""Who gets the descriptors of shared memory."""

import contextlib
import os
import resource
import socket

import pytest

from mpwds.feed.fd_passing import FdReceiver, FdSender

IDENTITY = b"\1" + bytes(15)
NOBODY = 65534


def test_a_trainer_that_is_known_gets_them():
    with (
        contextlib.closing(FdSender(pytest.fail)) as sender,
        contextlib.closing(FdReceiver(sender.name, IDENTITY)),
    ):
        sender.accept({IDENTITY})
        assert sender.connected(IDENTITY)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_processes_of_other_users_neither_get_nor_take_them():
    with (
        contextlib.closing(FdSender(pytest.fail)) as sender,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other,
    ):
        os.seteuid(NOBODY)
        try:
            other.connect("\0" + sender.name)
            other.send(IDENTITY)
            with pytest.raises(PermissionError):
                FdReceiver(sender.name, IDENTITY)
        finally:
            os.seteuid(0)
        sender.accept({IDENTITY})
        assert not sender.connected(IDENTITY)


@pytest.mark.parametrize("said", [b"?", b"\1cut off", b"\1" + bytes(16), b"GET / HTTP/1.1\r\n\r\n"])
def test_junk_is_counted_and_its_connection_is_closed(said):
    dropped = []
    with (
        contextlib.closing(FdSender(lambda *told: dropped.append(told))) as sender,
        stranger(sender) as other,
    ):
        other.send(said)
        sender.accept({IDENTITY})
        assert other.recv(1) == b""
    assert [reason for reason, _ in dropped] == ["malformed"]


def test_who_says_nothing_may_stay_and_who_has_left_is_not_counted():
    with contextlib.closing(FdSender(pytest.fail)) as sender, stranger(sender) as silent:
        with stranger(sender) as other:
            other.send(IDENTITY)
        with stranger(sender):
            pass
        sender.accept(set())
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.recv(1)


def test_a_trainer_is_accepted_later_if_no_descriptor_is_left_for_it():
    with (
        contextlib.closing(FdSender(pytest.fail)) as sender,
        contextlib.closing(FdReceiver(sender.name, IDENTITY)),
    ):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            sender.accept({IDENTITY})
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert not sender.connected(IDENTITY)
        sender.accept({IDENTITY})
        assert sender.connected(IDENTITY)


def stranger(sender):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect("\0" + sender.name)
    return connection
