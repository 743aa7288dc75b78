"""Numbers for the epochs of torch's DataLoader."""

import fcntl
import gc
import multiprocessing
import os
import pickle

import pytest

from mpwds.pipeline.context import Context
from mpwds.pipeline.indexed.mds_datasets import SharedEpochCounter
from tests.loader.faults.processes import wait_until_idle


def epoch(run, iteration=0, worker=0, rank=0):
    return Context(epoch=iteration, rank=rank, world_size=2, worker=worker, workers=2, run=run)


def found(numbers, *contexts):
    """What new processes find, one after the other."""
    return [pickle.loads(pickle.dumps(numbers)).number_of(context) for context in contexts]


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_all_workers_find_the_same_number(method):
    numbers = SharedEpochCounter()
    context = multiprocessing.get_context(method)
    epochs = [epoch(run, worker=worker) for worker in range(20) for run in (71, 5, 38)]
    with context.Pool(4) as pool:
        found = pool.map(numbers.number_of, epochs, chunksize=1)
    assert len({(each.run, number) for each, number in zip(epochs, found, strict=True)}) == 3
    assert set(found) == {0, 1, 2}
    assert numbers.begun(0) == 3


def test_a_process_waits_until_another_has_written():
    numbers, other = SharedEpochCounter(), SharedEpochCounter()
    other.number_of(epoch(9))
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pid = pool.apply(os.getpid)
        with open(f"/proc/self/fd/{numbers._descriptor}", "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            number = pool.apply_async(numbers.number_of, [epoch(7)])
            wait_until_idle(pid)
            file.write(os.pread(other._descriptor, 1000, 0))
        assert number.get() == 1


@pytest.mark.parametrize(
    ("epochs", "numbers"),
    [
        ([epoch(7), epoch(7, iteration=1)], [0, 1]),
        ([epoch(7, worker=worker) for worker in (0, 1, 1, 0, 0, 1)], [0, 0, 1, 1, 2, 2]),
        ([epoch(7, worker=worker) for worker in (0, 0, 1)], [0, 1, 1]),
    ],
    ids=["of the same workers", "with the same seed", "of a worker that missed one"],
)
def test_a_later_epoch_has_another_number(epochs, numbers):
    counter = SharedEpochCounter()
    assert found(counter, *epochs) == numbers
    assert counter.begun(0) == numbers[-1] + 1


def test_epochs_are_numbered_where_the_system_has_no_memfd(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    assert found(SharedEpochCounter(), epoch(7), epoch(7, iteration=1)) == [0, 1]


def test_a_process_that_asks_again_finds_the_same_number():
    numbers = SharedEpochCounter()
    assert [numbers.number_of(epoch(7, iteration)) for iteration in (0, 1, 0)] == [0, 1, 0]
    assert numbers.begun(0) == 2


@pytest.mark.parametrize("seeds", [(7, 7), (7, 5)])
def test_each_rank_counts_its_own_epochs(seeds):
    numbers = SharedEpochCounter()
    assert found(numbers, *(epoch(run, rank=rank) for rank, run in enumerate(seeds))) == [0, 0]
    assert found(numbers, *(epoch(3, rank=rank) for rank in (1, 0))) == [1, 1]


def test_a_pickle_outlives_the_process_that_made_it():
    numbers = SharedEpochCounter()
    numbers.number_of(epoch(7))
    pickled = pickle.dumps(numbers)
    assert pickle.loads(pickled).begun(0) == 1
    del numbers
    gc.collect()
    assert pickle.loads(pickled).begun(0) == 0
