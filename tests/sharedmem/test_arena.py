"""The producer's arena: blocks taken, reused, grown; and the bell that wakes the producer."""

import os
import select

import pytest

from mpwds.errors import SharedMemoryError
from mpwds.sharedmem.arena import Arena, EventFd
from tests.forks import raised_in_fork
from tests.open_files import descriptors


class Watched(Arena):
    """An arena that notes its announcements."""

    def __init__(self, blocks):
        self.layouts, self.descriptors = [], []
        super().__init__(blocks, self._note)

    def _note(self, layout, descriptor):
        self.layouts.append(layout)
        self.descriptors.append(descriptor)

    def memory_taken(self):
        """By the blocks of its first segment."""
        return os.fstat(self.descriptors[0]).st_blocks * 512 - 4096


def test_blocks_have_the_size_of_the_first_batch_rounded_up_to_pages():
    arena = Watched(3)
    assert arena.acquire(5000).memory.nbytes == 8192
    assert [(layout.blocks, layout.block_nbytes) for layout in arena.layouts] == [(3, 8192)]


def test_hands_out_each_block_once_until_it_is_free_again():
    arena = Arena(2, lambda *_: None)
    first, second = arena.acquire(100), arena.acquire(100)
    assert (first.number, second.number) == (0, 1)
    assert arena.acquire(100) is None
    arena.release(first)
    assert arena.acquire(100).number == 0


def test_one_large_batch_makes_small_ones_after_it_take_no_more_memory_than_they_need():
    arena = Watched(4)
    blocks = [arena.acquire(nbytes) for nbytes in (1 << 26, 100, 3 << 20, 5_000)]
    assert [block.memory.nbytes for block in blocks] == [1 << 26] * 4
    assert arena.memory_taken() == (1 << 26) + (1 << 20) + (3 << 20) + (1 << 20)


def test_the_same_block_is_used_again_and_gets_the_memory_that_it_lacks():
    arena = Watched(8)
    first = arena.acquire(8 << 20)
    for megabytes, most in [(1, 1), (3, 3), (2, 3), (6, 6), (8, 8)]:
        arena.release(arena.acquire(megabytes << 20))
        assert arena.memory_taken() == first.memory.nbytes + (most << 20)


def test_grows_by_a_new_segment_for_a_batch_that_does_not_fit_and_not_for_a_smaller_one():
    arena = Watched(2)
    small = arena.acquire(4096)
    small.memory[:5] = b"small"
    large = arena.acquire(100_000)
    assert large.memory.nbytes >= 100_000
    assert arena.acquire(10).memory.nbytes == large.memory.nbytes
    assert bytes(small.memory[:5]) == b"small"
    assert len(arena.layouts) == 2


def test_a_little_growth_leaves_room_for_more():
    arena = Watched(2)
    for nbytes in range(1 << 20, (1 << 20) + 200_000, 1000):
        arena.release(arena.acquire(nbytes))
    assert len(arena.layouts) == 2


def test_is_refused_memory_with_a_clear_error_and_works_on():
    arena = Arena(2, lambda *_: None)
    with pytest.raises(
        SharedMemoryError, match="refused 2,251,799,813.7 MB of shared memory .*Cannot allocate memory"
    ):
        arena.acquire(1 << 50)
    assert arena.acquire(100).memory.nbytes == 4096


def test_keeps_no_descriptor_after_its_end():
    before = descriptors()
    arena = Arena(2, lambda *_: None)
    arena.acquire(100)
    del arena
    assert not descriptors() - before


@pytest.mark.parametrize("blocks", [0, -1, 257])
def test_number_of_blocks_out_of_range_is_an_error(blocks):
    with pytest.raises(ValueError, match=f"between 1 and 256, got {blocks}"):
        Arena(blocks, lambda *_: None)


def test_a_bell_wakes_a_waiter_however_often_it_was_rung_before():
    bell = EventFd()
    for _ in range(3):
        bell.ring()
    assert select.select([bell], [], [], 0)[0] == [bell]
    assert bell.clear()
    assert select.select([bell], [], [], 0)[0] == []
    assert not bell.clear()


def test_a_bell_is_heard_in_another_process():
    bell = EventFd()
    assert raised_in_fork(bell.ring) == ""
    assert bell.clear()


def test_a_bell_is_not_heard_after_it_is_closed():
    bell = EventFd()
    other = os.dup(bell.fileno())
    bell.close()
    bell.ring()
    assert select.select([other], [], [], 0)[0] == []
    os.close(other)


def test_a_bell_closes_its_descriptor_with_the_last_reference():
    bell = EventFd()
    descriptor = bell.fileno()
    del bell
    assert not os.path.exists(f"/proc/self/fd/{descriptor}")
