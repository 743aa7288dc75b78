from itertools import chain, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpwds.pipeline.context import Context
from mpwds.pipeline.indexed.source import order_of, worker_positions

kinds = st.sampled_from(["global", "chunked", "shards", False])


def order(kind, samples, *facts, starts=(0,), chunksize=10):
    return order_of(kind, samples, lambda: np.array(starts), chunksize, *facts)(np.arange(samples)).tolist()


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
    def positions(rank, worker):
        return worker_positions(kind, samples, Context(0, None, rank, ranks, worker, workers))

    shares = [[positions(rank, worker) for worker in range(workers)] for rank in range(ranks)]
    assert sorted(place for rank in shares for share in rank for place in share) == list(range(samples))
    of_rank = [sum(map(len, rank)) for rank in shares]
    assert max(of_rank) - min(of_rank) <= 1
    assert all(max(map(len, rank)) - min(map(len, rank)) <= 1 for rank in shares)


def test_the_first_places_of_a_global_order_are_read_first_by_any_number_of_workers():
    for workers in (1, 2, 5):
        contexts = [Context(worker=worker, workers=workers) for worker in range(workers)]
        firsts = [worker_positions("global", 100, context)[:10] for context in contexts]
        assert {place for first in firsts for place in first} == set(range(10 * workers))
