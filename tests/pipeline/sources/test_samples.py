import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.errors import ShardError
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.sources.samples import TarSamples
from mpwds.pipeline.sources.shards import ShardList
from tests.pipeline.conftest import SIZES


def read(urls, shuffled=False, context=ALONE):
    return TarSamples().stream(ShardList(urls, shuffled).stream(context), context)


@settings(max_examples=60, deadline=None)
@given(stop=st.integers(0, 21), shuffled=st.booleans(), workers=st.integers(1, 3), data=st.data())
def test_continues_from_its_state_exactly(shards, continues, stop, shuffled, workers, data):
    worker = data.draw(st.integers(0, workers - 1))
    context = Context(epoch=1, worker=worker, workers=workers)
    continues(lambda: read(shards, shuffled, context), stop)


def test_an_address_is_the_shards_number_before_shuffling_and_the_offset(shards):
    stream = read(shards, True, Context(epoch=3))
    expected = [(shard, 2048 * row) for shard, size in enumerate(SIZES) for row in range(size)]
    assert {int(sample["txt"]): address for address, sample in stream} == dict(enumerate(expected))


def test_any_worker_fetches_any_address_in_any_order(shards):
    samples = list(read(shards))
    other = read(shards, True, Context(worker=1, workers=2))
    for address, sample in [*samples[::-1], *samples, *samples[::3]]:
        assert other.fetch(address) == sample


def test_fetching_does_not_disturb_the_iteration(shards):
    stream = read(shards)
    numbers = []
    for address, sample in stream:
        stream.fetch((3, 2048))
        stream.fetch(address)
        numbers.append(int(sample["txt"]))
    assert numbers == list(range(20))


def test_an_offset_where_no_sample_begins_is_an_error(shards):
    with pytest.raises(ShardError, match="offset 512 of .*x-000.tar"):
        read(shards).fetch((0, 512))
    with pytest.raises(ShardError, match="no element begins at offset 10240 of .*x-000.tar: the shard has"):
        read(shards).fetch((0, 10240))


def test_a_sample_is_described_by_key_and_shard(shards):
    assert str(read(shards).describe([3, 2048])).startswith('sample "0007" of /')
    assert str(read(shards).describe([3, 2048])).endswith("x-003.tar")


def test_a_sample_that_cannot_be_read_again_is_described_by_its_offset():
    assert str(read("gone.tar").describe([0, 512])) == "the sample at offset 512 of gone.tar"
