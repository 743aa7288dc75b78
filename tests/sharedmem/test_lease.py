"""Leases: a block is handed back when, and only when, no view of it is left."""

import os

import numpy as np
import pytest
import torch

from mpwds import interrupts
from tests.forks import raised_in_fork
from tests.sharedmem.pair import Pair, ctrl_c_in_hand_back


@pytest.fixture
def pair():
    return Pair()


def numpy_view(exporter):
    return np.frombuffer(exporter, np.uint8)


def torch_view(exporter):
    return torch.frombuffer(exporter, dtype=torch.uint8)


views = pytest.mark.parametrize("view", [numpy_view, torch_view])


@views
def test_a_view_of_a_view_keeps_the_block_when_its_parents_are_gone_and_the_last_hands_it_back(pair, view):
    part = view(pair.send(7))[1:][2:5]
    assert (pair.free(), pair.consumer.leased, pair.bell.clear()) == (1, 1, False)
    pair.send(8)
    pair.bell.clear()
    assert part.tolist() == [7, 7, 7]
    del part
    assert (pair.free(), pair.consumer.leased, pair.bell.clear()) == (2, 0, True)


def test_a_numpy_view_of_a_tensor_keeps_the_block_and_the_other_way_round(pair):
    array = torch_view(pair.send(1)).numpy()[3:]
    tensor = torch.from_numpy(numpy_view(pair.send(2)))[3:]
    assert pair.free() == 0
    del array
    assert pair.free() == 1
    del tensor
    assert pair.free() == 2


def test_a_fork_that_drops_its_views_or_leases_does_not_hand_the_block_back(pair):
    held = [numpy_view(pair.send(7))]

    def lease_again():
        held.clear()
        numpy_view(pair.consumer.lease(0))

    assert raised_in_fork(lease_again) == ""
    assert (pair.free(), set(held[0].tolist())) == (1, {7})


def test_a_block_whose_finalizer_was_interrupted_is_reclaimed(pair):
    array = numpy_view(pair.send(7))
    with ctrl_c_in_hand_back():
        del array
    assert (pair.free(), pair.consumer.leased) == (1, 0)
    pair.consumer.reclaim()
    assert (pair.free(), pair.bell.clear()) == (2, True)


def test_a_lease_that_ended_does_not_undo_what_happened_to_its_block_since(pair):
    array = numpy_view(pair.send(1))
    del array
    block = pair.producer.acquire(10)
    pair.consumer.discard(block.number)
    pair.consumer.reclaim()
    assert pair.free() == 2


def test_a_ctrl_c_inside_a_finalizer_is_raised_later(pair):
    def interrupt(*_):
        raise KeyboardInterrupt

    array = numpy_view(pair.send(7))
    pair.bell._write = interrupt
    del array
    with pytest.raises(KeyboardInterrupt):
        interrupts.raise_deferred()
    interrupts.raise_deferred()


def test_a_block_is_not_released_by_a_lease_that_ended_before_it_was_taken_again(pair):
    first = numpy_view(pair.send(1))
    late = pair.consumer._finalizer(0, 1)
    del first
    second = numpy_view(pair.send(2))
    late(None)
    pair.consumer.reclaim()
    assert (pair.free(), set(second.tolist())) == (1, {2})


def test_views_outlive_arena_mapping_and_bell(pair):
    array = numpy_view(pair.send(7))
    pair.producer = pair.consumer = pair.bell = None
    assert set(array.tolist()) == {7}
    del array


def test_views_of_a_segment_outlive_its_replacement_by_a_larger_one(pair):
    small = numpy_view(pair.send(1))
    pair.nbytes = 100_000
    large = numpy_view(pair.send(2))
    assert set(small.tolist()) == {1}
    del small
    assert (pair.free(), set(large.tolist())) == (1, {2})


def test_discarding_hands_back_a_block_that_was_never_leased(pair):
    block = pair.producer.acquire(4096)
    assert bytes(pair.consumer.peek(block.number)[:1]) == b"\0"
    pair.consumer.discard(block.number)
    assert (pair.free(), pair.bell.clear()) == (2, True)


def test_ten_thousand_batches_leave_memory_descriptors_and_mappings_as_they_were(pair):
    def footprint():
        with open("/proc/self/maps") as maps, open("/proc/self/statm") as statm:
            resident = int(statm.read().split()[1])
            return len(maps.readlines()), len(os.listdir("/proc/self/fd")), resident

    def run(batches):
        for value in range(batches):
            array = numpy_view(pair.send(value % 256))
            assert array[0] == value % 256
            del array

    run(100)
    mappings, descriptors, resident = footprint()
    run(10_000)
    after = footprint()
    assert after[0] <= mappings  # what another test left may go meanwhile
    assert after[1] <= descriptors
    assert after[2] - resident < 256
