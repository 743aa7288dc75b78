"""Private copies: equal, writable, and made in memory that is used again."""

import mmap

import numpy as np
import psutil
import pytest

from mpwds.errors import SharedMemoryError
from mpwds.sharedmem.lease import CopiedBatches
from tests.memory import allocating_below


def copy(copies, data):
    return np.frombuffer(copies.copy(memoryview(data)), np.uint8)


def address(array):
    return array.__array_interface__["data"][0]


def test_is_equal_and_independent():
    data = bytearray(b"abc" * 1000)
    array = copy(CopiedBatches(), data)
    data[0] = 0
    assert array.tobytes() == b"abc" * 1000
    array[:] = 1


def test_the_memory_of_a_dropped_copy_serves_the_next():
    copies = CopiedBatches()
    first = copy(copies, b"1" * 5_000_000)
    where = address(first)
    del first
    second = copy(copies, b"2" * 5_000_000)
    assert address(second) == where
    assert set(second.tolist()) == {ord("2")}


@pytest.mark.parametrize("nbytes", [5_000, 160_000, 1_900_000, 5_000_000])
def test_copies_that_are_kept_take_little_more_memory_than_they_hold(nbytes):
    copies = CopiedBatches()
    data = b"1" * nbytes
    count = 40_000_000 // nbytes
    before = psutil.Process().memory_info().rss
    kept = [copies.copy(memoryview(data)) for _ in range(count)]
    assert psutil.Process().memory_info().rss - before < 2 * len(kept) * nbytes


def test_copies_that_are_dropped_leave_nothing_but_their_memory_for_later():
    copies = CopiedBatches()
    data = memoryview(b"1" * 5000)
    copies.copy(data)
    with allocating_below(20_000):  # less than 20 bytes for each
        for _ in range(1000):
            copies.copy(data)


def test_copies_of_which_a_part_is_kept_do_not_share_memory():
    copies = CopiedBatches()
    parts = [copy(copies, bytes([value]) * 1000)[5:10] for value in range(20)]
    assert [set(part.tolist()) for part in parts] == [{value} for value in range(20)]


def test_memory_that_is_too_small_is_not_reused():
    copies = CopiedBatches()
    del_me = copy(copies, b"1")
    del del_me
    assert copy(copies, b"2" * 10_000_000).tobytes() == b"2" * 10_000_000


def test_no_memory_is_a_clear_error(monkeypatch):
    def refuse(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(
        SharedMemoryError, match=r"private copy of 0\.0 MB \(Cannot allocate memory\): keep fewer"
    ):
        CopiedBatches().copy(memoryview(b"x"))
