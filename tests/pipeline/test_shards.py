import warnings
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.context import Context
from mpwds.pipeline.shards import ShardList, assigned_shards


@settings(max_examples=50, deadline=None)
@given(
    count=st.integers(0, 40),
    world_size=st.integers(1, 4),
    workers=st.integers(1, 4),
    shuffled=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_each_shard_is_read_once_over_all_ranks_and_workers(count, world_size, workers, shuffled, epoch):
    read = Counter()
    for rank in range(world_size):
        for worker in range(workers):
            context = Context(epoch, 7, rank, world_size, worker, workers)
            read.update(assigned_shards(count, shuffled, context))
    assert read == Counter(range(count))


def test_unshuffled_shards_are_dealt_in_order():
    assert assigned_shards(7, False, Context(rank=1, world_size=2, worker=0, workers=2)) == [1, 5]


def test_epoch_and_seed_change_the_order():
    orders = [assigned_shards(30, True, Context(epoch, seed)) for epoch in (0, 1) for seed in (0, 1)]
    assert all(sorted(order) == list(range(30)) for order in orders)
    assert len(set(map(tuple, orders))) == 4


def test_no_seed_is_seed_zero():
    assert assigned_shards(30, True, Context()) == assigned_shards(30, True, Context(seed=0))


def test_no_shards_are_refused_at_once():
    with pytest.raises(ValueError, match="no shards"):
        ShardList(())


def test_more_workers_than_shards_are_warned_of_once():
    shards = ShardList("a.tar")
    with pytest.warns(UserWarning, match="1 shards for 2 workers .* some have nothing to do"):
        shards.stream(Context(worker=0, workers=2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shards.stream(Context(worker=1, workers=2))
        shards.stream(Context(worker=0, workers=1))
