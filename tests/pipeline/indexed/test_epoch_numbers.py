"""Numbers for the epochs of torch's DataLoader."""

import gc
import multiprocessing
import pickle

import pytest

from mpwds.pipeline.indexed.divided import EpochNumbers


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_all_processes_find_the_same_number(method):
    numbers = EpochNumbers()
    context = multiprocessing.get_context(method)
    with context.Pool(4) as pool:
        found = pool.starmap(numbers.number_of, [(run, 0) for run in [71, 5, 38] * 20])
    assert len(set(zip([71, 5, 38] * 20, found, strict=True))) == 3
    assert set(found) == {0, 1, 2}
    assert len(numbers) == 3


def test_a_later_epoch_of_the_same_workers_has_another_number():
    numbers = EpochNumbers()
    assert [numbers.number_of(7, iteration) for iteration in (0, 1, 0)] == [0, 1, 0]


def test_a_pickle_outlives_the_process_that_made_it():
    numbers = EpochNumbers()
    numbers.number_of(7, 0)
    pickled = pickle.dumps(numbers)
    assert len(pickle.loads(pickled)) == 1
    del numbers
    gc.collect()
    assert len(pickle.loads(pickled)) == 0
