"""Bells: rung from anywhere, heard once, never on a descriptor that belongs to something else."""

import os
import select

from mpwds.sharedmem.arena import EventFd


def test_wakes_a_waiter_however_often_it_was_rung_before():
    bell = EventFd()
    for _ in range(3):
        bell.ring()
    assert select.select([bell], [], [], 0)[0] == [bell]
    assert bell.clear()
    assert select.select([bell], [], [], 0)[0] == []
    assert not bell.clear()


def test_is_heard_in_another_process():
    bell = EventFd()
    pid = os.fork()
    if pid == 0:
        bell.ring()
        os._exit(0)
    os.waitpid(pid, 0)
    assert bell.clear()


def test_is_not_heard_after_it_is_closed():
    bell = EventFd()
    other = os.dup(bell.fileno())
    bell.close()
    bell.ring()
    assert select.select([other], [], [], 0)[0] == []
    os.close(other)


def test_closes_its_descriptor_with_the_last_reference():
    bell = EventFd()
    descriptor = bell.fileno()
    del bell
    assert not os.path.exists(f"/proc/self/fd/{descriptor}")
