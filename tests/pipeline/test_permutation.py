from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.randomness import Permutation


def permuted(n, *facts):
    return Permutation(n, *facts).of(np.arange(n))


@settings(max_examples=200)
@given(n=st.integers(0, 3000), seed=st.integers())
def test_each_number_comes_once(n, seed):
    assert np.array_equal(np.sort(permuted(n, seed)), np.arange(n))


@given(n=st.integers(1, 2**53), seed=st.integers(), data=st.data())
def test_a_place_has_the_same_number_whatever_is_asked_with_it(n, seed, data):
    places = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20))
    order = Permutation(n, seed)
    together = order.of(places)
    assert [order[place] for place in places] == together.tolist()
    assert [int(order.of([place])[0]) for place in places] == together.tolist()
    assert all(0 <= number < n for number in together.tolist())
    assert len(set(together.tolist())) == len(set(places))


def test_another_seed_and_another_epoch_give_another_order():
    orders = {tuple(permuted(100, seed, epoch)) for seed in range(10) for epoch in range(10)}
    assert len(orders) == 100


def test_the_same_facts_give_the_same_order_in_every_version():
    assert permuted(12, "global", 0, 1).tolist() == [1, 6, 7, 5, 4, 0, 2, 9, 10, 8, 11, 3]


def chi_square(counts, expected):
    return float(((np.asarray(counts) - expected) ** 2 / expected).sum())


def test_all_orders_of_few_numbers_are_equally_likely():
    seen = Counter(tuple(permuted(4, seed)) for seed in range(2400))
    counts = [seen[each] for each in permutations(range(4))]
    # 23 degrees of freedom: a true shuffle exceeds it once in 1000 times
    assert chi_square(counts, 100) < 49.7


def test_every_number_is_equally_likely_at_every_place():
    n, rounds = 20, 2000
    counts = np.zeros((n, n))
    for seed in range(rounds):
        counts[np.arange(n), permuted(n, "places", seed)] += 1
    freedom = (n - 1) ** 2
    assert abs(chi_square(counts, rounds / n) * (n - 1) / n - freedom) < 4 * np.sqrt(2 * freedom)


def test_neighbours_in_a_large_order_are_unrelated():
    n = 1_000_000
    numbers = Permutation(n, "large").of(np.arange(n)) / n
    for distance in (1, 2, 3, 1000):  # 1000 is the grid's width
        correlation = np.corrcoef(numbers[:-distance], numbers[distance:])[0, 1]
        assert abs(correlation) < 4 / np.sqrt(n)
    assert abs(np.corrcoef(numbers, np.arange(n))[0, 1]) < 4 / np.sqrt(n)


def test_a_place_outside_is_an_index_error_so_it_can_be_iterated():
    assert sorted(Permutation(5, "seed")) == list(range(5))
    for place in (-1, 5):
        with pytest.raises(IndexError, match=f"no place {place} among 5"):
            Permutation(5, "seed")[place]
