import contextlib
import pickle
import re
from collections import Counter
from itertools import count, cycle, islice

import pytest
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds import extradatasets
from mpwds.extradatasets import ChoppedDataset, MockDataset, ResizedDataset, repeatedly
from mpwds.loader.multi_loader import MultiLoader
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.epochs import Epochs
from mpwds.pipeline.sources.webdataset import WebDataset
from mpwds.storage.streams.patterns import expand_urls


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 30), limit=st.integers(1, 70))
def test_an_epoch_has_the_number_of_elements_asked_for(n, limit):
    elements = list(DataPipeline(range(n)).shuffle(7).with_epoch(limit))
    assert len(elements) == limit
    counts = Counter(elements)
    assert max(counts.values()) - min(counts[number] for number in range(n)) <= 1


@settings(max_examples=50, deadline=None)
@given(
    limit=st.integers(1, 50), stop=st.integers(0, 51), worker=st.integers(0, 1), runs=st.none() | st.just(2)
)
def test_a_repeated_epoch_continues_from_its_state_exactly(shards, continues, limit, stop, worker, runs):
    dataset = WebDataset(shards, shardshuffle=True, seed=1).shuffle(4).to_tuple("__key__ cls").batched(2)
    dataset.given_epochs = Epochs(runs, limit)
    continues(lambda: dataset.stream(Context(epoch=3, worker=worker, workers=2)), stop)


@pytest.mark.parametrize(
    ("shard", "worker", "read", "expected"),
    [
        (0, 0, 3, None),
        (0, 1, 0, "there are fewer shards than workers"),
        (
            1,
            0,
            0,
            "with_epoch(3) ends after 0 elements: the dataset is empty, in worker 0 of 2, on node 0 of 1",
        ),
    ],
)
def test_a_worker_without_samples_warns_that_its_epoch_is_empty(shards, shard, worker, read, expected):
    dataset = WebDataset([expand_urls(shards)[shard]], empty_check=False).with_epoch(3)
    stream = dataset.stream(Context(worker=worker, workers=2))
    with pytest.warns(RuntimeWarning, match=re.escape(expected)) if expected else contextlib.nullcontext():
        assert len(list(stream)) == read


def test_an_epoch_of_a_source_that_is_used_up_warns():
    left = ["a", "b"]

    def used_up():
        while left:
            yield left.pop(0)

    with pytest.warns(RuntimeWarning, match="ends after 2 elements: the dataset is empty in repetition 1"):
        assert list(DataPipeline(used_up).with_epoch(3)) == ["a", "b"]


def test_an_epoch_of_repetitions_may_be_empty(recwarn):
    assert list(DataPipeline([]).repeat()) == list(DataPipeline([]).repeat(2, 3)) == []
    assert not list(recwarn)


def test_each_repetition_has_an_order_of_its_own_and_the_first_that_of_the_epoch():
    dataset = DataPipeline(range(50)).shuffle(50)
    plain = list(dataset)
    repeated = list(DataPipeline(range(50)).shuffle(50).repeat(2))
    assert repeated[:50] == plain != repeated[50:]
    assert sorted(repeated[50:]) == sorted(plain)


def test_no_repetition_has_the_order_of_another_epoch():
    dataset = DataPipeline(range(50)).shuffle(50).repeat(3)
    orders = [tuple(list(dataset)[start : start + 50]) for _ in range(3) for start in (0, 50, 100)]
    assert len(set(orders)) == 9


def test_a_repetition_inside_a_repetition_has_an_order_of_its_own_too():
    inner = DataPipeline(range(50)).shuffle(50).repeat(2)
    elements = list(DataPipeline(inner).repeat(2))
    assert len({tuple(elements[start : start + 50]) for start in (0, 50, 100, 150)}) == 4


def test_augmentation_differs_between_repetitions_and_is_made_again_by_the_address():
    import random

    dataset = DataPipeline(range(2)).map(lambda number: number + random.random()).with_epoch(6)
    stream = dataset.stream()
    made = list(stream)
    assert len({element for _, element in made}) == 6
    assert [dataset.stream().fetch(address) for address, _ in made] == [element for _, element in made]
    assert [stream.fetch(address) for address, _ in made[::-1]] == [element for _, element in made[::-1]]


def test_as_in_webdataset_the_pipeline_itself_is_changed_and_no_copy_made_before():
    dataset = DataPipeline("abc")
    copy = dataset.compose()
    assert dataset.with_epoch(2).with_length(5, silent=True) is dataset
    assert list(dataset) == ["a", "b"]
    assert dataset.repeat(2) is dataset
    assert list(dataset) == list("abcabc")
    assert list(copy) == ["a", "b", "c"]
    with pytest.raises(TypeError):
        len(copy)


def test_what_is_counted_are_the_elements_at_the_end_as_in_webdataset():
    dataset = DataPipeline(range(6)).with_epoch(4).batched(2, collation_fn=None)
    assert list(dataset) == [[0, 1], [2, 3], [4, 5], [0, 1]]


def test_a_pipeline_that_begins_at_another_counts_that_ones_elements_first():
    dataset = DataPipeline(DataPipeline(range(6)).with_epoch(4)).batched(3, collation_fn=None)
    assert list(dataset) == [[0, 1, 2], [3]]


@pytest.mark.parametrize(
    ("dataset", "elements"),
    [
        (DataPipeline("ab").with_epoch(), "ababa"),
        (DataPipeline("ab").repeat(), "ababa"),
        (DataPipeline("ab").repeat(nbatches=5), "ababa"),
        (DataPipeline("ab").repeat(2, 3), "aba"),
        (DataPipeline("ab").repeat(1, 1), "a"),
        (DataPipeline(lambda: cycle("ab")).with_epoch(3), "aba"),
    ],
    ids=str,
)
def test_an_epoch_has_a_number_of_elements_or_repetitions_or_no_end(dataset, elements):
    assert list(islice(dataset, 5)) == list(elements)


def test_the_source_is_not_read_beyond_the_epochs_end():
    read = []

    def numbers():
        for number in range(5):
            read.append(number)
            yield number

    assert list(DataPipeline(numbers).with_epoch(3)) == [0, 1, 2]
    assert read == [0, 1, 2]


def test_only_a_pipeline_that_was_given_a_length_has_one():
    dataset = DataPipeline("abc")
    with pytest.raises(TypeError, match="has no len"):
        len(dataset)
    with pytest.warns(UserWarning, match="with_length.1793. sets only what len.. returns"):
        longer = dataset.with_length(1793)
    assert len(longer) == len(dataset) == len(dataset.shuffle(3)) == 1793
    assert len(dataset.repeat(17).with_length(19, silent=True)) == 19
    assert list(DataPipeline("abc").with_length(0, silent=True) or ()) == ["a", "b", "c"]  # it counts as true


def test_prints_epoch_and_length():
    dataset = DataPipeline("abc").with_epoch(5).with_length(7, silent=True).batched(2)
    parts = "DataPipeline(str)", "batched(2)", "with_epoch(5)", "with_length(7)"
    assert repr(dataset) == "\n    .".join(parts)
    assert repr(DataPipeline("abc").repeat(2)).endswith("repeat(2)")


def test_a_resized_dataset_has_webdatasets_length_and_nominal_length():
    dataset = ResizedDataset(range(3), 5, 100)
    assert (list(dataset), len(dataset)) == ([0, 1, 2, 0, 1], 100)
    assert (list(ResizedDataset([1, 2])), len(ChoppedDataset([1, 2], 1))) == ([1, 2], 1)
    assert [batch.tolist() for batch in dataset.batched(2)] == [[2, 0], [1, 2], [0]]
    assert str(dataset) == "ResizedDataset(range, 5)\n    .with_length(100)"


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return count()


@pytest.mark.parametrize(
    ("source", "second", "fourth"),
    [(range(8), [3, 4, 5], [1, 2, 3]), (Endless(), [3, 4, 5], [9, 10, 11])],
    ids=["addressable", "endless iterable"],
)
def test_an_epoch_of_a_resized_dataset_begins_where_the_one_before_ended(source, second, fourth):
    dataset = ResizedDataset(source, 3)
    assert list(dataset) == [0, 1, 2]
    other = pickle.loads(pickle.dumps(dataset))
    left_early = iter(dataset)
    assert next(left_early) == second[0]
    next(iter(dataset))
    with pytest.warns(RuntimeWarning, match="epoch 1 begins after 4 elements"):
        assert list(left_early) == second[1:]
    assert list(dataset) == fourth
    other.set_epoch(3)
    with pytest.warns(RuntimeWarning, match="epoch 3 begins after 9 elements.* must run through 9 of them"):
        assert list(other) == fourth


def test_the_epochs_of_a_resized_dataset_in_workers_make_up_the_dataset(shards):
    dataset = ResizedDataset(WebDataset(shards, shardshuffle=True).to_tuple("cls"), 5)
    workers = [[Context(epoch, worker=worker, workers=2) for epoch in range(12)] for worker in (0, 1)]
    epochs = [dataset.stream(context) for worker in workers for context in worker]
    read = [int(label) for epoch in epochs for _, (label,) in epoch]
    assert len(read) == 12 * 2 * 5
    assert set(read) == set(range(20))


@settings(max_examples=50, deadline=None)
@given(length=st.integers(1, 30), stop=st.integers(0, 31), epoch=st.integers(0, 3), worker=st.integers(0, 1))
@pytest.mark.filterwarnings("ignore:ResizedDataset. epoch:RuntimeWarning")
def test_an_epoch_of_a_resized_dataset_continues_exactly(shards, continues, length, stop, epoch, worker):
    dataset = ResizedDataset(WebDataset(shards, shardshuffle=True, seed=1).shuffle(4).to_tuple("cls"), length)
    continues(lambda: dataset.stream(Context(epoch=epoch, worker=worker, workers=2)), stop)


@settings(max_examples=20, deadline=None)
@given(length=st.integers(0, 10), stop=st.integers(0, 11))
def test_a_mock_dataset_yields_its_sample_in_every_worker_and_continues(continues, length, stop):
    dataset = MockDataset((True, True), length)
    assert list(dataset) == [(True, True)] * length
    continues(lambda: dataset.stream(Context(worker=1, workers=2)), stop)


def test_a_mock_dataset_is_a_pipeline():
    assert list(MockDataset("x", 3).batched(2, collation_fn=None)) == [["x", "x"], ["x"]]
    assert repr(MockDataset("x", 3).batched(2)) == "MockDataset(str, 3)\n    .batched(2)"


def test_as_functions_they_leave_the_dataset_as_it_is():
    dataset = DataPipeline("abc")
    assert list(extradatasets.with_epoch(dataset, 4)) == list("abca")
    assert len(extradatasets.with_length(dataset, 17)) == 17
    assert list(dataset) == ["a", "b", "c"]


def test_repeatedly_ends_by_epochs_batches_or_samples():
    batches = [([1, 2], "ab"), ([3], "c")]
    assert list(repeatedly(batches, nepochs=2)) == batches * 2
    assert list(repeatedly(batches, nbatches=3)) == [*batches, batches[0]]
    assert list(repeatedly(batches, nsamples=4)) == [*batches, batches[0]]
    assert list(repeatedly([{"x": [1, 2]}], nsamples=3)) == [{"x": [1, 2]}] * 2
    assert list(repeatedly("ab", nsamples=3, batchsize=len)) == ["a", "b", "a"]
    assert list(repeatedly([])) == []


def test_the_epochs_of_a_resized_dataset_in_a_loader_read_no_element_twice():
    taken = []
    numbers = DataPipeline(range(1000)).map(lambda number: taken.append(number) or number)
    dataset = ResizedDataset(numbers, 100)
    with MultiLoader(dataset, workers=0) as loader:
        epochs = [list(loader) for _ in range(4)]
    assert taken == [number for epoch in epochs for number in epoch] == list(range(400))
