"""Samplers: the same orders as those of wids, for each seed and epoch."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpwds.pipeline.indexed.samplers import ChunkedSampler, DistributedChunkedSampler, ShardListSampler


@pytest.fixture
def theirs(import_peer):
    return import_peer("wids.wids")


same_peer = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
seeds = st.integers(-5, 10**12)


@same_peer
@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6), seed=seeds, first=st.booleans())
def test_shard_after_shard_in_the_order_of_wids(theirs, lengths, seed, first):
    ours = ShardListSampler(None, lengths=lengths, seed=seed, shufflefirst=first)
    peer = theirs.ShardListSampler(None, lengths=lengths, seed=seed, shufflefirst=first)
    for _ in range(3):
        assert list(ours) == list(peer)
    assert len(ours) == sum(lengths)


@same_peer
@given(
    samples=st.one_of(st.none(), st.integers(0, 50), st.tuples(st.integers(0, 20), st.integers(20, 50))),
    chunksize=st.integers(1, 20),
    seed=seeds,
    shuffle=st.booleans(),
    first=st.booleans(),
    epoch=st.integers(0, 9),
)
def test_chunk_after_chunk_in_the_order_of_wids(theirs, samples, chunksize, seed, shuffle, first, epoch):
    options = {"num_samples": samples, "chunksize": chunksize, "seed": seed, "shuffle": shuffle}
    kinds = ChunkedSampler, theirs.ChunkedSampler
    ours, peer = (sampler(range(50), **options, shufflefirst=first) for sampler in kinds)
    for sampler in (ours, peer):
        sampler.set_epoch(epoch)
    for _ in range(2):
        assert list(ours) == list(peer)


def test_an_iteration_that_is_broken_off_is_no_epoch():
    sampler = ChunkedSampler(range(9), chunksize=3)
    next(iter(sampler))
    assert list(sampler) == list(ChunkedSampler(range(9), chunksize=3))


@given(count=st.integers(0, 40), ranks=st.integers(1, 7), chunksize=st.integers(1, 9), seed=seeds)
def test_the_ranks_parts_are_all_samples_once(count, ranks, chunksize, seed):
    parts = [
        DistributedChunkedSampler(range(count), num_replicas=ranks, rank=rank, chunksize=chunksize, seed=seed)
        for rank in range(ranks)
    ]
    assert sorted(number for part in parts for number in part) == list(range(count))
    assert len({len(part) for part in parts[:-1] if len(part)}) <= 2


def test_parts_are_those_of_wids_under_torch_distributed(theirs, monkeypatch):
    monkeypatch.setattr(theirs.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(theirs.dist, "get_world_size", lambda group=None: 3)
    monkeypatch.setattr(theirs.dist, "get_rank", lambda group=None: 1)
    peer = theirs.DistributedChunkedSampler(range(50), chunksize=7, seed=3)
    assert list(DistributedChunkedSampler(range(50), chunksize=7, seed=3)) == list(peer)


def test_the_environment_tells_rank_and_ranks(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert sorted(DistributedChunkedSampler(range(5))) == [3, 4]


def test_a_single_process_is_warned_about():
    with pytest.warns(RuntimeWarning, match="this is the only process"):
        assert len(DistributedChunkedSampler(range(5))) == 5


def test_ranks_divide_as_many_samples_as_they_are_told_and_drop_none():
    with pytest.warns(RuntimeWarning, match="drop_last has no effect") as caught:
        options = {"num_samples": 9, "shuffle": False, "drop_last": True}
        part = DistributedChunkedSampler(range(50), num_replicas=2, rank=1, **options)
    assert (list(part), len(caught)) == ([5, 6, 7, 8], 1)
