from collections import Counter
from itertools import chain, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.context import Context
from mpwds.pipeline.indexed.source import Permutation, order_of, worker_positions

kinds = st.sampled_from(["global", "chunked", "shards", False])


def order(kind, samples, *facts, starts=(0,), chunksize=10):
    return order_of(kind, samples, lambda: np.array(starts), chunksize, *facts)(np.arange(samples)).tolist()


def permuted(n, *facts):
    return Permutation(n, *facts).of(np.arange(n))


@given(kind=kinds, samples=st.integers(0, 300), chunksize=st.integers(1, 100), data=st.data())
def test_every_order_has_each_sample_once(kind, samples, chunksize, data):
    cuts = data.draw(st.sets(st.integers(1, max(samples - 1, 1)), max_size=10)) if samples > 1 else set()
    found = order(kind, samples, "seed", starts=(0, *sorted(cuts)), chunksize=chunksize)
    assert sorted(found) == list(range(samples))


def test_shards_come_in_random_order_and_their_samples_as_stored():
    shards = ([0, 1, 2, 3], [4], [5, 6, 7, 8, 9])
    possible = {tuple(chain(*each)) for each in permutations(shards)}
    assert {tuple(order("shards", 10, epoch, starts=(0, 4, 5))) for epoch in range(60)} == possible


def test_a_chunk_is_read_to_its_end_before_the_next_and_each_is_shuffled():
    found = order("chunked", 95, "seed", chunksize=10)
    chunks = [[number // 10 for number in found]]
    chunks = [chunk for i, chunk in enumerate(chunks[0]) if i == 0 or chunk != chunks[0][i - 1]]
    assert sorted(chunks) == list(range(10)) != chunks
    inside = [[number % 10 for number in found if number // 10 == chunk] for chunk in range(9)]
    assert len(set(map(tuple, inside))) == 9


@pytest.mark.parametrize("kind", ["global", "chunked", "shards"])
def test_each_epoch_has_another_order(kind):
    starts = tuple(range(0, 100, 10))
    assert order(kind, 100, "seed", 0, starts=starts) != order(kind, 100, "seed", 1, starts=starts)


@given(kind=kinds, samples=st.integers(0, 100), ranks=st.integers(1, 4), workers=st.integers(1, 4))
def test_each_place_belongs_to_one_worker_and_shares_are_even(kind, samples, ranks, workers):
    shares = [
        [
            worker_positions(kind, samples, Context(0, None, rank, ranks, worker, workers))
            for worker in range(workers)
        ]
        for rank in range(ranks)
    ]
    assert sorted(place for rank in shares for share in rank for place in share) == list(range(samples))
    of_rank = [sum(map(len, rank)) for rank in shares]
    assert max(of_rank) - min(of_rank) <= 1
    assert all(max(map(len, rank)) - min(map(len, rank)) <= 1 for rank in shares)


def test_the_first_places_of_a_global_order_are_read_first_by_any_number_of_workers():
    for workers in (1, 2, 5):
        firsts = [
            worker_positions("global", 100, Context(worker=worker, workers=workers))[:10]
            for worker in range(workers)
        ]
        assert {place for first in firsts for place in first} == set(range(10 * workers))


@settings(max_examples=200)
@given(n=st.integers(0, 3000), seed=st.integers())
def test_each_number_comes_once(n, seed):
    assert np.array_equal(np.sort(permuted(n, seed)), np.arange(n))


@given(n=st.integers(1, 2**53), seed=st.integers(), data=st.data())
def test_a_place_has_the_same_number_whatever_is_asked_with_it(n, seed, data):
    places = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20))
    together = Permutation(n, seed).of(places)
    assert [int(Permutation(n, seed).of([place])[0]) for place in places] == together.tolist()
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


def test_each_batch_of_a_large_order_comes_from_everywhere():
    n, batches = 1_000_000, 100
    counts = np.zeros((batches, 50))
    for batch in range(batches):
        numbers = Permutation(n, "batches").of(np.arange(256) + batch * 10_000)
        counts[batch] = np.bincount(numbers * 50 // n, minlength=50)
    freedom = batches * 49
    assert abs(chi_square(counts, 256 / 50) - freedom) < 4 * np.sqrt(2 * freedom)
