import tarfile
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext

from mpwds.errors import ShardError
from mpwds.pipeline.context import Context
from mpwds.pipeline.samples import TarSamples, read_samples, split_name


@pytest.fixture
def shard(tmp_path, add_member):
    def write(*members):
        path = str(tmp_path / "x.tar")
        with tarfile.open(path, "w") as archive:
            for name in members:
                add_member(archive, name, name.encode())
        return path

    return write


def keys_and_fields(path):
    return [(sample["__key__"], sorted(sample)[2:]) for _, _, sample in read_samples(path)]


def test_members_are_grouped_by_the_name_before_the_first_dot(shard):
    path = shard("d.v1/a.seg.png", "d.v1/a.CLS", "d.v1/b.cls")
    assert [sample for _, _, sample in read_samples(path)] == [
        {"__key__": "d.v1/a", "__url__": path, "seg.png": b"d.v1/a.seg.png", "cls": b"d.v1/a.CLS"},
        {"__key__": "d.v1/b", "__url__": path, "cls": b"d.v1/b.cls"},
    ]


def test_members_that_belong_to_no_sample_are_skipped(shard):
    path = shard("README", "__meta__/a.txt", "__index__", ".hidden", "a.txt", "LICENSE", "a.cls")
    assert keys_and_fields(path) == [("a", ["cls", "txt"])]


def test_a_key_that_returns_later_begins_another_sample(shard):
    assert [key for key, _ in keys_and_fields(shard("a.txt", "b.txt", "a.cls"))] == ["a", "b", "a"]


def test_an_extension_twice_in_a_sample_is_an_error_that_names_file_and_shard(shard):
    path = shard("a.txt", "a.TXT")
    with pytest.raises(ShardError, match=r"a\.TXT at offset 1024 of .*x\.tar: sample 'a' has a member 'txt'"):
        list(read_samples(path))


@settings(max_examples=300, deadline=None)
@given(st.text("a./_B", max_size=10))
def test_names_split_as_webdataset_splits_them(name):
    key, suffix = base_plus_ext(name)
    top = name.split("/")[0]
    if key is None or (len(top) >= 4 and top[:2] == top[-2:] == "__"):
        assert split_name(name) == ("", "")
    else:
        assert split_name(name) == (key, suffix.lower())


def test_no_shards_are_refused_at_once():
    with pytest.raises(ValueError, match="no shards"):
        TarSamples(())


@settings(max_examples=60, deadline=None)
@given(
    stop=st.integers(0, 21),
    shuffled=st.booleans(),
    workers=st.integers(1, 3),
    data=st.data(),
)
def test_continues_from_its_state_exactly(shards, continues, stop, shuffled, workers, data):
    worker = data.draw(st.integers(0, workers - 1))
    context = Context(epoch=1, worker=worker, workers=workers)
    continues(lambda: TarSamples(shards, shardshuffle=shuffled).stream(context), stop)


def test_an_address_is_the_shards_number_before_shuffling_and_the_offset(shards):
    stream = TarSamples(shards, shardshuffle=True).stream(Context(epoch=3))
    expected = {number: (shard, 2048 * row) for shard, row, number in numbered()}
    assert {int(sample["txt"]): address for address, sample in stream} == expected


def numbered():
    number = 0
    for shard, size in enumerate([5, 0, 1, 7, 3, 4]):
        for row in range(size):
            yield shard, row, number
            number += 1


def test_any_worker_fetches_any_address_in_any_order(shards):
    samples = list(TarSamples(shards).stream())
    other = TarSamples(shards, shardshuffle=True).stream(Context(worker=1, workers=2))
    for address, sample in [*samples[::-1], *samples, *samples[::3]]:
        assert other.fetch(address) == sample


def test_fetching_does_not_disturb_the_iteration(shards):
    stream = TarSamples(shards).stream()
    read = []
    for address, sample in stream:
        stream.fetch((3, 2048))
        stream.fetch(address)
        read.append(int(sample["txt"]))
    assert read == list(range(20))


def test_an_offset_where_no_sample_begins_is_an_error(shards):
    with pytest.raises(ShardError):
        TarSamples(shards).stream().fetch((0, 512))


def test_a_sample_is_described_by_key_and_shard(shards):
    assert TarSamples(shards).stream().describe([3, 2048]).startswith('sample "0007" of /')
    assert TarSamples(shards).stream().describe([3, 2048]).endswith("x-003.tar")


def test_a_sample_that_cannot_be_read_again_is_described_by_its_offset():
    assert TarSamples("gone.tar").stream().describe([0, 512]) == "the sample at offset 512 of gone.tar"


def test_a_dropped_stream_closes_its_files(shards, open_shards):
    stream = TarSamples(shards).stream()
    next(stream)
    stream.fetch((3, 0))
    assert len(open_shards()) == 2
    del stream
    assert open_shards() == []


def test_more_workers_than_shards_are_warned_of_once(shard):
    dataset = TarSamples(shard("a.cls"))
    with pytest.warns(UserWarning, match="1 shards for 2 workers .* some have nothing to do"):
        dataset.stream(Context(worker=0, workers=2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset.stream(Context(worker=1, workers=2))
        dataset.stream(Context(worker=0, workers=1))
