"""MDS datasets of both versions in pipelines and loaders."""

import math
import pickle
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpwds
from mpwds.pipeline.context import Context
from mpwds.pipeline.indexed.mds_datasets import PartitionedSamples
from mpwds.pipeline.stream import reached_end

COUNT = 103


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A dataset of version 2."""
    folder = tmp_path_factory.mktemp("v2")
    with mpwds.MDSWriter(columns={"number": "int", "text": "str"}, out=folder, size_limit=600) as sink:
        for number in range(COUNT):
            sink.write({"number": number, "text": f"text {number}"})
    return folder


@pytest.fixture(scope="module")
def old_folder(tmp_path_factory):
    """A dataset of version 1."""
    folder = tmp_path_factory.mktemp("v1")
    with mpwds.StreamingDatasetWriter(folder, ["uid", "data"], 300) as sink:
        sink.write_samples({"uid": b"%d" % number, "data": bytes(number % 5)} for number in range(COUNT))
    return folder


def old(folder, shuffle=False, **options):
    return mpwds.StreamingDataset(None, str(folder), shuffle, {"uid": int}, **options)


class Numbers(mpwds.StreamingDataset):
    """As programs for composer extend it."""

    def __getitem__(self, index):
        return super().__getitem__(index)["uid"]


def numbers(folder, shuffle=False, **options):
    return Numbers(None, str(folder), shuffle, {"uid": int}, **options)


def test_a_dataset_is_read_by_number_and_in_order(folder):
    ds = mpwds.MDSDataset(folder)
    assert len(ds) == COUNT
    assert ds[7] == {"number": 7, "text": "text 7"}
    assert [sample["number"] for sample in ds] == list(range(COUNT))
    assert [sample["number"] for sample in ds[-3:]] == [100, 101, 102]
    assert str(folder) in repr(ds)


@pytest.fixture(params=["version 1", "version 2", "extended"])
def make(request, folder, old_folder):
    """A function that opens a shuffled dataset of numbers."""
    return {
        "version 1": lambda: old(old_folder, True).map(itemgetter("uid")),
        "version 2": lambda: mpwds.MDSDataset(folder, shuffle="global").map(itemgetter("number")),
        "extended": lambda: numbers(old_folder, True),
    }[request.param]


@pytest.mark.parametrize("stop", [0, 1, 40, COUNT])
def test_a_stream_continues_exactly_where_it_was(make, stop):
    ds = make()
    whole = [sample for _, sample in ds.stream(Context(epoch=3))]
    first = ds.stream(Context(epoch=3))
    seen = [next(first)[1] for _ in range(stop)]
    second = pickle.loads(pickle.dumps(ds)).stream(Context(epoch=3))
    second.load_state_dict(first.state_dict())
    assert seen + [sample for _, sample in second] == whole


def test_the_samples_of_composers_dataset_are_those_of_its_decoders(old_folder):
    ds = mpwds.StreamingDataset(None, str(old_folder), False, {"data": len})
    assert ds[4] == {"data": 4}
    with pytest.raises(ValueError, match=r"field 'cls'; fields are \['uid', 'data'\]"):
        mpwds.StreamingDataset(None, str(old_folder), False, {"cls": len})


def test_composers_dataset_prints_as_it_was_made_with_its_further_stages(old_folder):
    ds = old(old_folder, True)
    assert str(ds) == f"StreamingDataset(None, {str(old_folder)!r}, True)"
    assert repr(ds).splitlines()[0] == str(ds)
    assert repr(ds.map(len)).splitlines()[:2] == [str(ds), "    .map(len)"]
    assert len(ds.with_length(7, silent=True)) == 7


def test_composers_dataset_reads_four_shards_at_a_time_in_random_order(old_folder):
    ds = old(old_folder, True)
    chunk = 4 * max(ds.source.shards.lengths)
    order = [sample["uid"] for sample in ds]
    chunks = [{n // chunk for n in order[at : at + chunk]} for at in range(0, COUNT, chunk)]
    assert order != sorted(order)
    assert sum(len(each) == 1 for each in chunks) >= len(chunks) - 2  # the last chunk is smaller


def test_a_dataset_of_version_1_without_samples_has_epochs_without_samples(tmp_path):
    mpwds.StreamingDatasetWriter(tmp_path, ["uid"]).close()
    assert (len(old(tmp_path, True)), list(old(tmp_path, True))) == (0, [])


def test_composers_documented_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    samples = ({"uid": b"%06d" % ix, "data": bytes([3, ix]), "unused": b"blah"} for ix in range(100))
    with mpwds.StreamingDatasetWriter(dirname="remote", fields=["uid", "data"]) as writer:
        writer.write_samples(samples=samples)
    decoders = {"uid": bytes.decode, "data": lambda data: int.from_bytes(data, "big")}
    dataset = mpwds.StreamingDataset(remote="remote", local="local", shuffle=False, decoders=decoders)
    assert list(dataset) == [{"uid": f"{ix:06}", "data": 768 + ix} for ix in range(100)]


def test_what_a_subclass_makes_goes_through_further_stages(old_folder):
    ds = numbers(old_folder)
    assert list(ds.map(lambda number: -number).slice(3)) == [0, -1, -2]
    assert ds[5] == 5


few = st.integers(1, 4)


@given(count=st.integers(0, 60), batch_size=st.integers(0, 7), world_size=few, workers=few)
def test_ranks_and_workers_get_consecutive_parts(count, batch_size, world_size, workers):
    source = PartitionedSamples(Shard(count), batch_size=batch_size)

    def part(rank, worker):
        return source.places(Context(0, None, rank, world_size, worker, workers))

    parts = [[part(rank, worker) for worker in range(workers)] for rank in range(world_size)]
    assert [place for rank in parts for part in rank for place in part] == list(range(count))
    sizes = [sum(map(len, rank)) for rank in parts]
    assert max(sizes) - min(sizes) <= 1
    for rank, size in zip(parts, sizes, strict=True):
        if batch_size:
            assert sum(math.ceil(len(part) / batch_size) for part in rank) == math.ceil(size / batch_size)
        else:
            assert max(map(len, rank)) - min(map(len, rank)) <= 1


@given(count=st.integers(1, 60), batch_size=st.integers(1, 7), workers=st.integers(1, 4))
def test_only_the_last_batch_of_a_rank_is_smaller(count, batch_size, workers):
    source = PartitionedSamples(Shard(count), batch_size=batch_size)
    parts = [source.places(Context(worker=worker, workers=workers)) for worker in range(workers)]
    batches = []
    queues = [in_batches(part, batch_size) for part in parts]
    while queues:  # as a DataLoader takes them: from each worker in turn
        taken = [next(queue, reached_end) for queue in queues]
        batches += [batch for batch in taken if batch is not reached_end]
        queues = [queue for queue, batch in zip(queues, taken, strict=True) if batch is not reached_end]
    assert all(len(batch) == batch_size for batch in batches[:-1])


def read(source, *place, epoch=0):
    return [number for number, _ in source.stream(Context(epoch, None, *place))]


@given(count=st.integers(0, 60), size=st.integers(1, 7), world_size=few, workers=few, done=st.integers(0, 12))
def test_workers_that_take_batches_in_turn_keep_the_order(count, size, world_size, workers, done):
    source = PartitionedSamples(Shard(count), batch_size=size, in_turn=True, resumed=(0, done * size))
    for rank in range(world_size):
        parts = [read(source, rank, world_size, worker, workers) for worker in range(workers)]
        queues = [in_batches(part, size) for part in parts]
        taken = []
        while batch := next(queues[len(taken) % workers], None):
            taken.append(batch)
        expected = read(source, rank, world_size, epoch=1)[done * size :]  # another epoch is not resumed
        assert [number for batch in taken for number in batch] == expected
        assert all(next(queue, None) is None for queue in queues)


def in_batches(part, size):
    return iter([part[at : at + size] for at in range(0, len(part), size)])


class Shard:
    """One shard of some length."""

    def __init__(self, count):
        self.urls = ["x"]
        self.lengths = [count]

    def read(self, shard, index):
        return index

    def close(self):
        pass


def test_some_samples_of_a_dataset_are_its_epochs(old_folder):
    for part, expected in [
        (old(old_folder)[100:], [100, 101, 102]),
        (old(old_folder).select([5, 3]), [5, 3]),
    ]:
        assert (len(part), part[0]["uid"]) == (len(expected), expected[0])
        assert [sample["uid"] for sample in part] == expected
        assert [sample["uid"] for sample in mpwds.IndexedDataset(part)] == expected
    with pytest.raises(TypeError, match=r"Numbers changes ds\[i\], .* torch.utils.data.Subset\(ds, indices"):
        numbers(old_folder)[100:]


def test_the_length_is_that_of_the_rank(old_folder, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    ds = numbers(old_folder)
    assert len(ds) == 51
    assert list(ds) == list(range(52, COUNT))


@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_torchs_workers_know_the_epoch(old_folder, monkeypatch, start_method):
    """Also on several ranks, where torch's own seed differs."""
    from torch.utils.data import DataLoader

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    new, kept = (numbers(old_folder, True, batch_size=8) for _ in range(2))
    loaders = (
        DataLoader(new, batch_size=8, num_workers=2, multiprocessing_context=start_method),
        DataLoader(kept, batch_size=8, num_workers=2, persistent_workers=True),
    )
    epochs, same = ([[batch.tolist() for batch in loader] for _ in range(2)] for loader in loaders)
    assert epochs == same
    assert epochs[0] != epochs[1]
    assert [len({x for batch in epoch for x in batch}) for epoch in epochs] == [51] * 2
    assert new.next_epoch == 2


def test_torchs_epochs_differ_though_each_has_the_same_seed(old_folder):
    import torch

    dataset = numbers(old_folder, True, batch_size=8)
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, num_workers=2)
    epochs = []
    for _ in range(3):
        torch.manual_seed(0)
        epochs.append([x for batch in loader for x in batch.tolist()])
    assert all(sorted(epoch) == [*range(COUNT)] for epoch in epochs)
    firsts = [next(dataset.stream(Context(epoch=number)))[1] for number in range(3)]
    assert [epoch[0] for epoch in epochs] == firsts
    assert len(set(firsts)) == dataset.next_epoch == 3


def test_the_state_in_torchs_worker_is_of_the_epoch_in_another_process_too(old_folder):
    from torch.utils.data import DataLoader, IterableDataset

    class StateAfterFive(IterableDataset):
        def __init__(self):
            self.dataset = numbers(old_folder, True)

        def __iter__(self):
            iterator = iter(self.dataset)
            for _ in range(5):
                next(iterator)
            yield iterator.state_dict()

    loader = DataLoader(StateAfterFive(), batch_size=None, num_workers=1)
    _, [state] = list(loader), list(loader)
    dataset = numbers(old_folder, True)
    resumed = iter(dataset)
    resumed.load_state_dict(state)
    assert list(resumed) == [x for _, x in dataset.stream(Context(epoch=1))][5:]


@pytest.mark.parametrize("kind", ["torch", "mpwds"])
def test_a_dataloader_divides_it_into_whole_batches(old_folder, kind):
    import torch

    loader_class = torch.utils.data.DataLoader if kind == "torch" else mpwds.DataLoader
    loader = loader_class(numbers(old_folder, batch_size=8), batch_size=8, num_workers=2)
    batches = [batch.tolist() for batch in loader]
    assert [len(batch) for batch in batches] == [8] * 12 + [7]
    assert sorted(number for batch in batches for number in batch) == list(range(COUNT))
