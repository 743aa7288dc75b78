"""MultiDataset: workers read, decode and batch; the stages behind it run in the trainer."""

import collections
import warnings

import numpy as np
import pytest
import torch

from mpwds import WebDataset
from mpwds.compat.multi import MultiDataset, MultiDatasetIterator, pinned
from mpwds.pipeline.dataset import DataPipeline
from tests.loader.faults.processes import runs

pytestmark = pytest.mark.usefixtures("quick_workers")


def test_delivers_undecoded_samples(shards):
    samples = list(MultiDataset(WebDataset(shards), workers=2))
    assert sorted(sample["cls"] for sample in samples) == sorted(str(n).encode() for n in range(40))
    assert all(isinstance(sample["npy"], bytes) for sample in samples)


def test_delivers_tuples(shards):
    dataset = MultiDataset(WebDataset(shards).decode().to_tuple("npy", "cls"), workers=2)
    assert {(label, int(array[0, 0])) for array, label in dataset} == {(n, n) for n in range(40)}


@pytest.mark.parametrize(("size", "batchsize"), [(3, None), (3, 2), (10_000, 2)])
def test_arrays_arrive_as_arrays_and_tensors_as_tensors(size, batchsize):
    samples = [(np.full(size, number), torch.full((size,), number)) for number in range(4)]
    dataset = DataPipeline(samples) if batchsize is None else DataPipeline(samples).batched(batchsize)
    with MultiDataset(dataset, workers=2, pin_memory=False) as loader:
        assert [tuple(map(type, element)) for element in loader] == [(np.ndarray, torch.Tensor)] * len(
            list(dataset)
        )
    with MultiDataset(dataset, workers=1, output="torch") as loader:
        assert {type(part) for element in loader for part in element} == {torch.Tensor}


def test_workers_stay_between_epochs_and_end_with_close():
    dataset = MultiDataset(range(4), workers=2)
    list(dataset)
    pids = dataset.loader.worker_pids
    list(dataset)
    assert dataset.loader.worker_pids == pids
    dataset.close()
    assert not any(map(runs, pids))
    assert len(list(dataset)) == 4


def test_a_copy_with_more_stages_has_workers_of_its_own():
    dataset = MultiDataset(range(6), workers=1)
    pairs = dataset.batched(2)
    together = list(zip(dataset, pairs, strict=False))
    assert [(int(n), pair.tolist()) for n, pair in together] == [(0, [0, 1]), (1, [2, 3]), (2, [4, 5])]


def test_terminate_ends_the_workers_and_the_epoch():
    dataset = MultiDataset(range(1000), workers=2)
    elements = iter(dataset)
    assert isinstance(elements, MultiDatasetIterator)
    next(elements)
    pids = dataset.loader.worker_pids
    elements.terminate()
    assert len(pids) == 2
    assert not any(map(runs, pids))
    assert list(elements) == []
    assert len(list(dataset)) == 1000


def test_the_iterator_of_a_dataset_with_stages_can_be_terminated_too():
    elements = iter(MultiDataset(range(1000), workers=1).map(int).batched(10))
    assert next(elements).tolist() == list(range(10))
    elements.terminate()
    assert next(elements, None) is None


def test_len_is_nominal_also_of_copies():
    dataset = MultiDataset(range(6), workers=1, nominal=17)
    assert len(dataset) == len(dataset.batched(2)) == 17
    assert len(list(dataset)) == 6


def test_without_nominal_the_length_is_that_of_an_epoch_if_it_is_known():
    assert len(MultiDataset(range(6)).batched(4)) == 2
    with pytest.raises(TypeError, match="number of elements in an epoch is not known"):
        len(MultiDataset(DataPipeline(lambda: iter(range(6)))))


@pytest.mark.parametrize(("output_size", "ahead"), [(10000, 4), (12, 3), (4, 1), (1, 1)])
def test_output_size_bounds_what_is_in_flight(output_size, ahead):
    assert MultiDataset(range(6), workers=4, output_size=output_size).loader.prefetch == ahead


def test_an_output_size_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="output_size must be at least 1, got 0"):
        MultiDataset(range(6), output_size=0)


def test_options_go_to_the_loader():
    dataset = MultiDataset(range(6), workers=1, output="numpy", prefetch=7, timeout=20).batched(3)
    assert (dataset.loader.prefetch, dataset.loader.timeout) == (7, 20)
    assert [type(batch).__name__ for batch in dataset] == ["ndarray", "ndarray"]
    with pytest.raises(TypeError, match="colour"):
        MultiDataset(range(6), colour="red")


def test_an_epoch_continues_where_its_state_was_saved():
    dataset = MultiDataset(range(6), workers=2)
    elements = iter(dataset)
    seen = [int(next(elements)) for _ in range(4)]
    again = MultiDataset(range(6), workers=2)
    again.load_state_dict(dataset.state_dict())
    assert seen + list(map(int, again)) == list(range(6))


def test_without_cuda_pin_memory_changes_nothing_and_is_silent(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (element,) = MultiDataset([torch.ones(3)], workers=1, pin_memory=True)
    assert element.tolist() == [1, 1, 1]
    assert not element.is_pinned()


Pair = collections.namedtuple("Pair", "image label")


def test_with_cuda_the_tensors_of_the_delivered_elements_are_pinned(monkeypatch):
    class Pinned(torch.Tensor):
        pass

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor.as_subclass(Pinned))
    dataset = MultiDataset([{"__key__": "a", "x": [torch.ones(2), 7]}], workers=1)
    (sample,) = dataset
    assert isinstance(sample["x"][0], Pinned)
    assert (sample["__key__"], sample["x"][1]) == ("a", 7)
    assert type(pinned(Pair(torch.ones(2), None))) is Pair
    (sample,) = MultiDataset([{"x": torch.ones(2)}], workers=1, pin_memory=False)
    assert type(sample["x"]) is torch.Tensor


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_pinned_memory_is_pinned():
    (batch,) = MultiDataset(DataPipeline([torch.ones(3)]).batched(4), workers=1)
    assert batch.is_pinned()
