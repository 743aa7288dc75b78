import json
import pickle
import random

import numpy as np
import pytest
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st

import mpwds
from tests.pipeline.indexed.letters import Letters


def keys(dataset):
    return [sample["__key__"] for sample in dataset]


@given(index=st.integers(-30, 30), lengths=st.lists(st.integers(0, 5), max_size=5))
def test_it_is_indexed_as_a_list_is(index, lengths):
    dataset = mpwds.IndexedDataset(Letters(*lengths))
    samples = list(dataset)
    assert len(dataset) == len(samples) == sum(lengths)
    try:
        expected = samples[index]
    except IndexError:
        with pytest.raises(IndexError, match=f"no sample {index} among {len(samples)} samples"):
            dataset[index]
    else:
        assert dataset[index] == dataset[np.int64(index)] == expected


positions = st.none() | st.integers(-15, 15)


@given(start=positions, stop=positions, step=positions.filter(lambda n: n != 0), again=positions)
def test_a_slice_is_a_dataset_of_those_samples(start, stop, step, again):
    numbers = list(range(12))
    part = mpwds.IndexedDataset(range(12))[start:stop:step]
    assert list(part) == [part[i] for i in range(len(part))] == numbers[start:stop:step]
    assert list(part[again:]) == numbers[start:stop:step][again:]


class TestSelect:
    @pytest.mark.parametrize(
        ("indices", "samples"),
        [(np.arange(4) % 2 == 1, [1, 3]), (iter([2]), [2]), ([], [])],
        ids=["a mask", "an iterator", "nothing"],
    )
    def test_takes_a_mask_an_iterator_and_nothing(self, indices, samples):
        assert list(mpwds.IndexedDataset(range(4)).select(indices)) == samples

    def test_takes_indices_in_any_order_and_more_than_once(self):
        chosen = mpwds.IndexedDataset(range(10, 20)).select([9, 0, -1, 0])
        assert (list(chosen), chosen[1], list(chosen[::2].select([1]))) == ([19, 10, 19, 10], 10, [19])

    def test_takes_a_function_and_is_then_a_pipeline(self):
        even = mpwds.IndexedDataset(range(6)).select(lambda n: n % 2 == 0)
        assert list(even) == [0, 2, 4]
        assert not hasattr(even, "__getitem__")


class TestStages:
    def test_apply_to_a_sample_as_an_epoch_applies_them(self):
        dataset = mpwds.IndexedDataset(range(20), "global", seed=3)
        dataset = dataset.map(lambda n: (n, random.random(), np.random.rand()))
        dataset.set_epoch(4)
        one_by_one = [dataset[i] for i in range(20)]
        epoch = list(dataset)
        assert sorted(epoch) == one_by_one
        assert sorted(dataset) != one_by_one  # the next epoch draws others

    def test_leave_the_programs_random_numbers_alone(self):
        dataset = mpwds.IndexedDataset(range(3)).map(lambda n: random.random())
        before = random.getstate()
        assert dataset[0] != dataset[1]
        assert random.getstate() == before

    def test_decode_samples_of_tar_shards(self, tar_shards):
        dataset = mpwds.IndexedDataset(tar_shards).decode().to_tuple("cls", "txt")
        assert [dataset[i] for i in (0, 3, 4, -1)] == [(0, "a"), (3, "a"), (4, "c"), (10, "c")]

    def test_that_batch_or_shuffle_make_a_pipeline(self):
        dataset = mpwds.IndexedDataset(range(4))
        batches = dataset.map(abs).batched(2)
        assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3]]
        for pipeline in (batches, dataset.shuffle(3)):
            assert isinstance(pipeline, mpwds.DataPipeline)
            assert not isinstance(pipeline, mpwds.IndexedDataset)
            with pytest.raises(TypeError, match="subscriptable"):
                pipeline[0]

    def test_that_is_appended_and_batches_leaves_no_index(self):
        dataset = mpwds.IndexedDataset(range(4))
        dataset.append(mpwds.batched(2))
        with pytest.raises(TypeError, match=r"batched\(2\) does not map one sample to one .* which ds\[i\]"):
            dataset[0]

    def test_that_drops_a_sample_is_an_error_for_that_index(self):
        dataset = mpwds.IndexedDataset(range(4)).map(lambda n: n if n else None)
        assert list(dataset) == [1, 2, 3]
        assert dataset[1] == 1
        with pytest.raises(ValueError, match="a stage dropped sample 0: it returned None"):
            dataset[0]

    def test_that_fails_names_stage_and_sample(self):
        with pytest.raises(ZeroDivisionError) as caught:
            mpwds.IndexedDataset(Letters(2)).map(lambda sample: 1 / 0)[1]
        assert caught.value.__notes__ == ['in map(<lambda>), on sample "a1" of a.tar']


@settings(max_examples=40)
@given(kind=st.sampled_from(["global", "shards", False]), stop=st.integers(0, 12), epoch=st.integers(0, 3))
def test_its_iterator_continues_where_another_was(kind, stop, epoch):
    def dataset():
        shards = mpwds.IndexedDataset(Letters(4, 0, 7), kind, seed=5)
        return shards.map(lambda sample: (sample["__key__"], random.random()))

    first = dataset()
    first.set_epoch(epoch)
    iterator = iter(first)
    for _ in range(stop):
        next(iterator, None)
    state = json.loads(json.dumps(iterator.state_dict()))
    rest, following = list(iterator), list(first)
    second = dataset()
    resumed = iter(second)
    resumed.load_state_dict(state)
    assert list(resumed) == rest
    assert list(second) == following


def test_its_iterator_continues_in_the_order_of_a_torch_worker():
    class Halves(torch.utils.data.IterableDataset):
        def __iter__(self):
            iterator = iter(mpwds.IndexedDataset(range(50), "global"))
            begun = [next(iterator) for _ in range(5)]
            yield begun, iterator.state_dict(), list(iterator)

    ((begun, state, rest),) = torch.utils.data.DataLoader(Halves(), batch_size=None, num_workers=1)
    resumed = iter(mpwds.IndexedDataset(range(50), "global"))
    resumed.load_state_dict(state)
    assert list(resumed) == rest
    assert sorted(begun + rest) == list(range(50))


@pytest.mark.parametrize("state", [{"a": 1}, None, [1]])
def test_what_is_no_state_of_its_iterator_is_an_error(state):
    with pytest.raises(ValueError, match="an iterator's state is the dict that its state_dict.. gave, got "):
        iter(mpwds.IndexedDataset(range(3))).load_state_dict(state)


def test_without_an_order_of_its_own_torch_takes_it_as_map_style():
    assert not isinstance(mpwds.IndexedDataset(range(4)), torch.utils.data.IterableDataset)
    assert isinstance(mpwds.IndexedDataset(range(4), "global"), torch.utils.data.IterableDataset)


def test_it_is_pickled_without_what_is_open(tar_shards):
    dataset = mpwds.IndexedDataset(tar_shards).decode()
    assert dataset[2]["cls"] == 2
    assert pickle.loads(pickle.dumps(dataset))[2]["cls"] == 2


def test_closing_it_closes_the_shards_and_it_opens_them_again():
    shards = Letters(2)
    with mpwds.IndexedDataset(shards) as dataset:
        assert dataset[0]["__key__"] == "a0"
    assert shards.closed == 1
    assert dataset[1]["__key__"] == "a1"


def test_the_length_of_a_pipeline_is_what_its_stages_make(tar_shards):
    dataset = mpwds.IndexedDataset(tar_shards, "global").decode().to_tuple("cls")
    batches = dataset.batched(3)
    assert len(batches) == len(list(batches)) == 4
    assert len(dataset[:7].batched(3, partial=False)) == 2
    assert len(dataset.shuffle(5)) == 11
    assert len(pickle.loads(pickle.dumps(dataset.shuffle(5).batched(2)))) == 6
    for unknown in (dataset.select(bool), dataset.map(len).batched(3), dataset.batched(3).with_epoch(2)):
        with pytest.raises(TypeError, match="with_length"):
            len(unknown)
    assert len(batches.with_length(9, silent=True)) == 9


def test_it_prints_as_it_was_made_with_its_size(tar_shards):
    dataset = mpwds.IndexedDataset(tar_shards, "chunked", chunksize=10).decode("rgb8")
    assert repr(dataset).splitlines() == [
        f"IndexedDataset({tar_shards!r}, shuffle='chunked', chunksize=10)",
        "    .decode('rgb8')",
        "11 samples in 3 shards",
    ]
    assert repr(mpwds.IndexedDataset(range(1))) == "IndexedDataset(range)\n1 sample in 1 shard"
    part = mpwds.IndexedDataset(range(3000))[:2]
    assert repr(part) == "IndexedDataset(range)\n2 of 3,000 samples in 1 shard"


def test_it_prints_without_fetching_or_failing(tar_shards, tmp_path, serve):
    missing = mpwds.IndexedDataset(str(tmp_path / "nothere.tar"))
    assert repr(missing).endswith("nothere.tar')\n1 shard, not counted yet")
    url, web = serve(tmp_path)
    dataset = mpwds.IndexedDataset(f"{url}/x-{{0..2}}.tar", cache_dir=tmp_path / "copies")
    for made in (missing, dataset):
        assert "not counted yet" in made._repr_html_()
    assert "3 shards, not counted yet" in repr(dataset)
    assert web.requests == []
    assert len(dataset) == 11
    assert "11 samples in 3 shards" in repr(dataset)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint64])
def test_indices_may_have_any_type_of_whole_numbers(dtype):
    dataset = mpwds.IndexedDataset(range(60_000))[30_000:40_000].select(np.array([100, 5], dtype))
    assert list(dataset) == [dataset[0], dataset[1]] == [30_100, 30_005]
