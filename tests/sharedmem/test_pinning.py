"""Pinned memory: registered once, handed back behind a fence, unregistered before it is unmapped."""

import gc
import inspect
import os
import subprocess
import sys
import textwrap
import threading
import warnings

import numpy as np
import pytest
import torch

from mpwds.sharedmem import cuda as pinning
from mpwds.sharedmem.cuda import Pinning
from mpwds.sharedmem.lease import CopiedBatches
from tests.fake_cuda import FakeCuda, kept_to_the_rules
from tests.forks import raised_in_fork
from tests.sharedmem.pair import Pair, ctrl_c_in_hand_back
from tests.warned import files_of


class PinnedPair(Pair):
    def __init__(self, cuda):
        super().__init__(Pinning(lambda: cuda))

    def send(self, value):
        return torch.frombuffer(super().send(value), dtype=torch.uint8)


@pytest.fixture
def cuda():
    with kept_to_the_rules() as fake:
        yield fake


@pytest.fixture
def pair(cuda):
    made = PinnedPair(cuda)
    yield made
    made.close()


def test_a_segment_is_registered_once_and_all_of_its_blocks_are_pinned(cuda, pair):
    tensors = [pair.send(1), pair.send(2)]
    del tensors[0]
    tensors.append(pair.send(3))
    assert all(map(cuda.is_pinned, tensors))
    assert cuda.events.count("register") == 1


def test_a_block_that_no_device_reads_goes_back_at_once(pair):
    tensor = pair.send(7)
    pair.bell.clear()
    del tensor
    assert (pair.free(), pair.consumer.pending_device_reads, pair.bell.clear()) == (2, False, True)


def test_a_block_that_a_device_is_to_read_goes_back_when_it_has(cuda, pair):
    tensor = pair.send(7)
    copy = cuda.copy(tensor)
    del tensor
    pair.consumer.reclaim()
    assert (pair.free(), pair.consumer.leased) == (1, 0)
    assert (pair.consumer.pending_device_reads, pair.bell.clear()) == (True, False)
    cuda.run()
    pair.consumer.reclaim()
    assert (pair.free(), pair.consumer.pending_device_reads, pair.bell.clear()) == (2, False, True)
    assert set(copy.tolist()) == {7}


def test_the_fence_stands_in_the_stream_that_is_current_where_the_last_view_goes(cuda, pair):
    tensor = pair.send(7)
    with cuda.selected("mine"):
        copy = cuda.copy(tensor)
        del tensor
    cuda.run_stream("default", 100)
    pair.consumer.reclaim()
    assert pair.free() == 1
    cuda.run_stream("mine", 100)
    pair.consumer.reclaim()
    assert (pair.free(), set(copy.tolist())) == (2, {7})


def test_each_block_waits_for_its_own_copies_alone(cuda, pair):
    first, second = pair.send(1), pair.send(2)
    cuda.copy(first)
    del first
    with cuda.selected("other"):
        cuda.copy(second)
        del second
    cuda.run_stream("other", 100)
    pair.consumer.reclaim()
    assert pair.producer.acquire(1).number == 1


def test_a_fence_is_waited_for_if_asking_does_not_help(cuda, pair):
    cuda.works = "when awaited"
    tensor = pair.send(7)
    cuda.copy(tensor)
    del tensor
    pair.consumer.reclaim()
    assert pair.free() == 1
    pair.consumer.release_finished()
    pair.consumer.reclaim()
    assert (pair.free(), cuda.events.count("wait")) == (2, 1)


def test_a_block_that_is_let_go_of_in_another_thread_or_in_a_cycle_gets_its_fence(cuda, pair):
    held = [pair.send(1)]
    cycle = [pair.send(2)]
    cycle.append(cycle)
    copies = [cuda.copy(held[0]), cuda.copy(cycle[0])]
    thread = threading.Thread(target=held.clear)
    with cuda.selected("default"):
        thread.start()
        thread.join()
        del cycle
        gc.collect()
    pair.consumer.reclaim()
    assert pair.free() == 0
    cuda.run()
    pair.consumer.reclaim()
    assert (pair.free(), [set(copy.tolist()) for copy in copies]) == (2, [{1}, {2}])


@pytest.mark.parametrize("before", [0, 1], ids=["first lease", "leased before, with a fence"])
def test_a_block_whose_finalizer_was_interrupted_gets_a_fence_later(cuda, pair, before):
    for _ in range(before):
        cuda.copy(pair.send(3))
        cuda.run()
        pair.consumer.reclaim()

    tensor = pair.send(7)
    cuda.copy(tensor)
    with ctrl_c_in_hand_back():
        del tensor
    pair.consumer.reclaim()
    assert pair.free() == 1
    cuda.run()
    pair.consumer.reclaim()
    assert pair.free() == 2


def test_while_a_graph_is_captured_no_fence_is_made_and_no_block_goes_back(cuda, pair):
    tensor = pair.send(7)
    cuda.capturing = True
    del tensor
    pair.consumer.reclaim()
    assert (pair.free(), "fence" in cuda.events) == (1, False)
    cuda.capturing = False
    pair.consumer.reclaim()
    pair.consumer.reclaim()
    assert pair.free() == 2


def test_a_device_that_has_failed_is_heard_where_blocks_are_handed_back_and_not_in_a_finalizer(cuda, pair):
    tensor = pair.send(7)
    cuda.failed = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del tensor
    with pytest.raises(RuntimeError, match="device-side assert"):
        pair.consumer.reclaim()


def test_a_segment_is_unregistered_before_it_is_unmapped_when_the_last_view_is_gone(cuda, pair):
    part = pair.send(7)[100:200]
    pair.close()
    assert (len(cuda.registered), set(part.tolist())) == (1, {7})
    del part
    assert cuda.registered == {}
    assert cuda.events[-2:] == ["fence", "unregister"]


def test_a_segment_that_a_device_still_reads_is_kept_until_it_has(cuda, pair, monkeypatch):
    monkeypatch.setattr(pinning, "PATIENCE_S", 0.01)
    tensor = pair.send(7)
    copy = cuda.copy(tensor)
    pair.close()
    del tensor
    assert len(cuda.registered) == 1
    cuda.run()
    another = PinnedPair(cuda)
    another.send(8)
    assert (len(cuda.registered), set(copy.tolist())) == (1, {7})
    another.close()
    assert cuda.registered == {}


def test_blocks_that_were_let_go_of_in_other_streams_keep_their_segment_too(cuda, pair, monkeypatch):
    monkeypatch.setattr(pinning, "PATIENCE_S", 0.01)
    tensor = pair.send(7)
    with cuda.selected("mine"):
        cuda.copy(tensor)
        del tensor
    pair.close()
    assert len(cuda.registered) == 1
    cuda.run()
    pinning._unpin_all()
    assert cuda.registered == {}


def test_memory_that_cannot_be_pinned_is_used_as_it_is_with_one_warning(cuda):
    cuda.refuses = "out of memory"
    with pytest.warns(RuntimeWarning, match=r"shared memory could not be pinned \(out of memory\)") as caught:
        pair = PinnedPair(cuda)
        tensor = pair.send(7)
        pair.nbytes = 100_000
        larger = pair.send(8)
    assert files_of(caught) == [inspect.getfile(Pair)]
    assert (set(tensor.tolist()), set(larger.tolist())) == ({7}, {8})
    del larger
    assert (pair.free(), "fence" in cuda.events) == (2, False)
    pair.close()


@pytest.mark.parametrize("held", [False, True])
def test_a_fork_neither_makes_fences_nor_unregisters(cuda, pair, held):
    tensors = [pair.send(7)]
    before = list(cuda.events)

    def end():
        if not held:
            tensors.clear()
            pair.close()
        pinning._unpin_all()
        gc.collect()
        assert cuda.events == before

    assert raised_in_fork(end) == ""
    assert (pair.free(), set(tensors[0].tolist())) == (1, {7})


@pytest.mark.slow
def test_what_is_still_held_at_the_interpreters_exit_is_unregistered_before():
    program = """
        import atexit, sys
        sys.path.insert(0, {root!r})
        atexit.register(lambda: print(cuda.events[-1], cuda.registered, cuda.violations))  # the last to run
        from tests.fake_cuda import FakeCuda
        cuda = FakeCuda()
        from tests.sharedmem.test_pinning import PinnedPair
        pair = PinnedPair(cuda)
        tensor = pair.send(7)
        cuda.run()
        sys.modules["keeps"] = tensor
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program).format(root=root)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.stdout, run.stderr) == ("unregister {} []\n", "")


def test_private_copies_that_cannot_be_pinned_are_made_all_the_same():
    copies = CopiedBatches(pinning=Pinning(lambda: FakeCuda(refuses="no memory")))
    with pytest.warns(RuntimeWarning, match=r"0\.0 MB could not be pinned \(no memory\)") as caught:
        first, second = (np.frombuffer(copies.copy(memoryview(b"batch")), np.uint8) for _ in range(2))
    assert bytes(first) == bytes(second) == b"batch"
    assert len(caught) == 1
