import random

import numpy as np
import pytest
import torch

from mpwds.pipeline.context import Context
from mpwds.pipeline.randomness import seeded


def draw(_=None):
    return random.random(), float(np.random.rand()), float(torch.rand(())), random.gauss(0, 1)


def at(address, **context):
    return seeded(Context(**context))(draw, address, None)


def test_an_element_gets_the_same_numbers_on_every_worker_and_rank():
    assert at((3, 512)) == at((3, 512), worker=2, workers=4, rank=1, world_size=2, owns_process=True)


def test_an_address_that_came_back_as_lists_gives_the_same_numbers():
    assert at(((3, 512), 7)) == at([[3, 512], 7])


@pytest.mark.parametrize("change", [{"seed": 1}, {"epoch": 1}, {"stage": 1}])
def test_seed_epoch_and_stage_each_change_every_number(change):
    assert all(one != other for one, other in zip(at(17), at(17, **change), strict=True))


def test_neighbouring_addresses_get_different_numbers():
    assert len({at((0, 512 * n), owns_process=True) for n in range(100)}) == 100


def test_the_users_own_random_numbers_are_not_disturbed():
    def own():
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)
        # One normal number each: both generators then hold the second of a pair back.
        return random.gauss(0, 1), np.random.randn(), draw()

    undisturbed = (own(), draw(), np.random.randn())
    first = own()
    at(17)
    assert (first, draw(), np.random.randn()) == undisturbed


def test_the_users_generators_are_put_back_after_an_error_too():
    random.seed(5)
    before = random.getstate()
    with pytest.raises(ZeroDivisionError):
        seeded(Context())(lambda x: random.random() / x, 3, 0)
    assert random.getstate() == before


def test_a_process_of_its_own_is_not_put_back():
    before = random.getstate()
    at(17, owns_process=True)
    assert random.getstate() != before
