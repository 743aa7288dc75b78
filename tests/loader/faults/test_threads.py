"""Several threads, iterators and reference cycles, and garbage collection: each has what is its own."""

import gc
import threading
import time

import pytest

import mpwds
from tests.loader.faults.misfortunes import (
    CHEAP,
    LARGE,
    LENGTH,
    Numbers,
    endless,
    loader_of,
    numbers_in,
    pids_of,
)
from tests.loader.faults.processes import in_threads, runs, wait_until_gone

pytestmark = pytest.mark.usefixtures("one_fork_server")


@pytest.mark.parametrize("kind", [*CHEAP, "spawn"])
def test_a_thread_may_iterate_and_another_close(kind):
    received = []
    loader = loader_of(kind, Numbers(LARGE))
    in_threads(lambda: received.extend(numbers_in(loader)))
    in_threads(lambda: received.extend(numbers_in(loader)))
    in_threads(loader.close)
    assert received == [*range(LENGTH)] * 2


@pytest.mark.parametrize("kind", CHEAP)
def test_workers_live_on_when_the_thread_that_started_them_ends(kind):
    loader = loader_of(kind, Numbers(LARGE))
    held = []
    in_threads(lambda: held.append(iter(loader)))
    assert list(numbers_in(held[0])) == list(range(LENGTH))
    loader.close()


@pytest.mark.parametrize("kind", CHEAP)
def test_of_threads_that_share_an_iterator_each_batch_goes_to_one_and_the_others_are_told(kind):
    loader = loader_of(kind, Numbers(LARGE))
    iterator = iter(loader)
    received, told = [], []

    def take():
        while True:
            try:
                received.extend(numbers_in([next(iterator)]))
            except StopIteration:
                return
            except RuntimeError as error:
                told.append(str(error))
                time.sleep(0.001)

    in_threads(take, take, take)
    assert sorted(received) == list(range(LENGTH))
    assert set(told) <= {"another thread is in the middle of next() of this iteration: take turns"}
    loader.close()


def test_loaders_in_several_threads_do_not_disturb_one_another():
    received = []

    def run(kind):
        loader = loader_of(kind, Numbers(LARGE))
        received.append([*numbers_in(loader), *numbers_in(loader)])
        loader.close()

    in_threads(*(lambda kind=kind: run(kind) for kind in ["DataLoader", "DataLoader", "spawn", "forkserver"]))
    assert received == [[*range(LENGTH)] * 2] * 4


def test_a_loader_closed_by_another_thread_ends_its_iteration():
    for _ in range(5):
        loader = loader_of("fork", endless(1))
        iterator = iter(loader)
        next(iterator)
        closer = threading.Timer(0.02, loader.close)
        closer.start()
        with pytest.raises(RuntimeError, match="the loader was closed"):
            for _ in iterator:
                pass
        closer.join()
        assert loader.worker_pids == []


def test_threads_that_hog_the_interpreter_slow_a_loader_down_and_no_more():
    going = True

    def hog():
        while going:
            sum(range(10_000))

    hogs = [threading.Thread(target=hog) for _ in range(3)]
    for thread in hogs:
        thread.start()
    try:
        loader = loader_of("fork", Numbers(LARGE))
        assert list(numbers_in(loader)) == list(range(LENGTH))
        loader.close()
    finally:
        going = False
        for thread in hogs:
            thread.join()


@pytest.mark.parametrize("kind", ["DataLoader", "DataLoader by fork"])
def test_two_iterators_of_a_dataloader_have_workers_of_their_own(kind):
    loader = loader_of(kind, Numbers())
    first, second = iter(loader), iter(loader)
    received = [(int(one[0]), int(other[0])) for one, other in zip(first, second, strict=True)]
    assert received == [(number, number) for number in range(LENGTH)]


@pytest.mark.parametrize("kind", CHEAP)
def test_workers_end_with_a_generator_in_a_reference_cycle_that_is_collected(kind):
    def train(holder):
        loader = loader_of(kind, Numbers(LARGE))
        iterator = iter(loader)
        pids.extend(pids_of(loader, iterator))
        for batch in iterator:
            yield batch, holder

    pids = []
    holder = []
    holder.append(train(holder))
    next(holder[0])
    assert all(map(runs, pids))
    del holder
    gc.collect()
    wait_until_gone(pids)


@pytest.mark.parametrize("kind", CHEAP)
def test_workers_end_without_garbage_collection_where_there_are_no_cycles(kind):
    gc.disable()
    gc.freeze()
    try:
        loader = loader_of(kind, Numbers(LARGE))
        iterator = iter(loader)
        next(iterator)
        pids = list(pids_of(loader, iterator))
        del iterator, loader
        wait_until_gone(pids)
    finally:
        gc.unfreeze()
        gc.enable()


@pytest.mark.parametrize("kind", ["fork", "DataLoader"])
def test_a_structure_too_deep_to_be_sent_is_an_error_of_its_own(kind):
    loader = loader_of(kind, Deep())
    with pytest.raises((RecursionError, ValueError, TypeError, mpwds.MpwdsError)):
        list(loader)
    loader.close()


class Deep:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        deep = []
        for _ in range(100_000):
            deep = [deep]
        return deep
