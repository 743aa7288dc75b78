"""Who gets the descriptors of shared memory."""

import contextlib
import os
import resource
import socket
import tempfile

import pytest

from mpwds.errors import MpwdsError
from mpwds.feed.fd_passing import FdReceiver, FdSender

IDENTITY = b"\1" + bytes(15)
NOBODY = 65534


@pytest.fixture
def sender():
    with contextlib.closing(FdSender(pytest.fail)) as sender:
        yield sender


@pytest.fixture
def receiver(sender):
    with contextlib.closing(FdReceiver(sender.name, IDENTITY)) as receiver:
        yield receiver


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_processes_of_other_users_neither_get_nor_take_them(sender):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
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


def test_who_says_nothing_may_stay_and_who_has_left_is_not_counted(sender):
    with stranger(sender) as silent:
        with stranger(sender) as other:
            other.send(IDENTITY)
        with stranger(sender):
            pass
        sender.accept(set())
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.recv(1)


@pytest.mark.usefixtures("receiver")
def test_a_trainer_is_accepted_later_if_no_descriptor_is_left_for_it(sender):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        sender.accept({IDENTITY})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not sender.connected(IDENTITY)
    sender.accept({IDENTITY})
    assert sender.connected(IDENTITY)


@pytest.mark.usefixtures("nothing_left")
def test_descriptors_arrive_in_turn_for_each_launch_of_a_slot_and_are_closed_if_nobody_takes_them(
    sender, receiver
):
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()).fileno() for _ in range(4)]
        sender.accept({IDENTITY})
        for slot, launch, segment in ((1, 1, 0), (0, 2, 1), (0, 2, 2), (0, 1, 3)):
            sender.give(IDENTITY, slot, launch, files[segment], files[0])
        sender.give(b"nobody", 0, 0, files[0], files[0])
        for slot, launch, expected in ((0, 2, 1), (1, 1, 0), (0, 2, 2)):
            taken = receiver.take(slot, launch)
            assert [os.fstat(each).st_ino for each in taken] == [
                os.fstat(files[number]).st_ino for number in (expected, 0)
            ]
            for each in taken:
                os.close(each)
        with pytest.raises(MpwdsError, match="shared memory of worker 0 and did not hand it over"):
            receiver.take(0, 2)


def test_a_trainer_that_is_gone_or_connects_again_is_let_go(sender):
    with stranger(sender) as first, stranger(sender) as second:
        for each in (first, second):
            each.send(IDENTITY)
            sender.accept({IDENTITY})
            each.setblocking(False)
        assert first.recv(1) == b""
        with pytest.raises(BlockingIOError):
            second.recv(1)
        sender.accept(set())
        assert second.recv(1) == b""
        assert not sender.connected(IDENTITY)


def test_of_those_who_say_nothing_the_last_64_may_stay(sender):
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(stranger(sender)) for _ in range(66)]
        sender.accept(set())
        for each in silent:
            each.setblocking(False)
        assert [each.recv(1) for each in silent[:2]] == [b"", b""]
        for each in silent[2:]:
            with pytest.raises(BlockingIOError):
                each.recv(1)


def stranger(sender):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect("\0" + sender.name)
    return connection
