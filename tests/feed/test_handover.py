"""Who gets the descriptors of shared memory."""

import contextlib
import os
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
