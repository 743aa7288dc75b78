"""Who gets the descriptors of shared memory."""

import contextlib
import os
import resource
import socket

import pytest

from mpwds.feed.handover import Giver, Taker

IDENTITY = b"\1" + bytes(15)
NOBODY = 65534


def test_a_trainer_that_is_known_gets_them():
    with contextlib.closing(Giver(pytest.fail)) as giver, contextlib.closing(Taker(giver.name, IDENTITY)):
        giver.accept({IDENTITY})
        assert giver.connected(IDENTITY)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_processes_of_other_users_neither_get_nor_take_them():
    with (
        contextlib.closing(Giver(pytest.fail)) as giver,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other,
    ):
        os.seteuid(NOBODY)
        try:
            other.connect("\0" + giver.name)
            other.send(IDENTITY)
            with pytest.raises(PermissionError):
                Taker(giver.name, IDENTITY)
        finally:
            os.seteuid(0)
        giver.accept({IDENTITY})
        assert not giver.connected(IDENTITY)


@pytest.mark.parametrize("said", [b"?", b"\1cut off", b"\1" + bytes(16), b"GET / HTTP/1.1\r\n\r\n"])
def test_junk_is_counted_and_its_connection_is_closed(said):
    dropped = []
    with contextlib.closing(Giver(lambda *told: dropped.append(told))) as giver, stranger(giver) as other:
        other.send(said)
        giver.accept({IDENTITY})
        assert other.recv(1) == b""
    assert [reason for reason, _ in dropped] == ["malformed"]


def test_who_says_nothing_may_stay_and_who_has_left_is_not_counted():
    with contextlib.closing(Giver(pytest.fail)) as giver, stranger(giver) as silent:
        with stranger(giver) as other:
            other.send(IDENTITY)
        with stranger(giver):
            pass
        giver.accept(set())
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.recv(1)


def test_a_trainer_is_accepted_later_if_no_descriptor_is_left_for_it():
    with contextlib.closing(Giver(pytest.fail)) as giver, contextlib.closing(Taker(giver.name, IDENTITY)):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            giver.accept({IDENTITY})
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert not giver.connected(IDENTITY)
        giver.accept({IDENTITY})
        assert giver.connected(IDENTITY)


def stranger(giver):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect("\0" + giver.name)
    return connection
