import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpwds.cli.convert.create import (
    Planned,
    into_even_shards,
    into_shards,
    shuffled,
    split_in_two,
    write_shards,
)
from mpwds.storage.writing.tar_members import archive_bytes

shares = st.floats(0.01, 0.99)


@given(count=st.integers(2, 60), share=shares, seed=st.integers())
def test_a_split_has_each_sample_once_and_none_of_its_parts_is_empty(count, share, seed):
    first, second = split_in_two(count, share, seed)
    assert sorted(first + second) == list(range(count))
    assert abs(len(first) - share * count) <= 1
    assert first
    assert second
    assert (first, second) == split_in_two(count, share, seed)


@given(count=st.integers(0, 60), seed=st.integers())
def test_a_shuffle_has_each_sample_once(count, seed):
    assert sorted(shuffled(range(count), seed)) == list(range(count))


@given(
    sizes=st.lists(st.integers(0, 20_000), max_size=60),
    maxcount=st.integers(1, 10),
    maxsize=st.integers(1, 50_000),
)
def test_shards_have_all_samples_in_order_and_keep_to_their_limits(sizes, maxcount, maxsize):
    shards = list(into_shards(range(len(sizes)), sizes.__getitem__, maxcount, maxsize))
    assert [number for shard in shards for number in shard] == list(range(len(sizes)))
    for shard in shards:
        assert 1 <= len(shard) <= maxcount
        assert len(shard) == 1 or archive_bytes(sum(sizes[number] for number in shard)) <= maxsize
    for shard, following in itertools.pairwise(shards):
        with_next = archive_bytes(sum(sizes[number] for number in [*shard, following[0]]))
        assert len(shard) == maxcount or with_next > maxsize


@pytest.mark.parametrize(("count", "share"), [(1, 0.5), (10, 0.0), (10, 1.0), (10, 1.5)])
def test_a_split_that_leaves_nothing_is_refused(count, share):
    with pytest.raises(ValueError, match="split in two|between 0 and 1"):
        split_in_two(count, share, 0)


@pytest.mark.parametrize(
    ("samples", "size_bytes", "shards"),
    [
        (4000, 100_000, 16),  # 400 MB
        (40_000, 100_000, 40),
        (1_000_000, 1000, 100),  # of 10,000 samples
        (20, 1_000_000_000, 20),
        (100, 1000, 10),
        (9, 1000, 1),
        (0, 0, 0),
    ],
)
def test_even_shards_are_of_100_mb_but_enough_for_16_workers(samples, size_bytes, shards):
    found = list(into_even_shards(range(samples), lambda number: size_bytes))
    assert len(found) == shards
    assert list(itertools.chain(*found)) == list(range(samples))
    assert not found or max(map(len, found)) - min(map(len, found)) <= 1


@given(sizes=st.lists(st.integers(0, 10**9), max_size=300))
def test_even_shards_hold_each_sample_once_in_order(sizes):
    found = list(into_even_shards(range(len(sizes)), sizes.__getitem__))
    assert list(itertools.chain(*found)) == list(range(len(sizes)))
    assert all(found)


def test_a_run_that_continues_lists_all_shards_in_their_order():
    shards = [Planned(f"{n}.tar", [{"__key__": "a", "txt": b"x"}], 1) for n in range(3)]
    write_shards(shards[1:2], jobs=1)
    written = write_shards(shards, jobs=1, done=[shards[1].url])
    assert [(shard.url, shard.nbytes) for shard in written] == [
        (shards[0].url, 1),
        (shards[1].url, None),
        (shards[2].url, 1),
    ]
