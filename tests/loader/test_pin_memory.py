"""pin_memory: batches lie in memory that a device reads by itself, and are whole until it has."""

import itertools
import warnings

import numpy as np
import pytest
import torch

import mpwds
from mpwds.errors import WorkerDied
from mpwds.pipeline.dataset import DataPipeline
from tests.fake_cuda import FakeAccess, loader_on, numbers
from tests.warned import files_of


@pytest.mark.parametrize("nbytes", [8, 80_000])
def test_tensors_are_pinned_and_each_arena_is_registered_once(cuda, nbytes):
    with loader_on(cuda, numbers(20, nbytes), workers=2, pin_memory=True) as loader:
        for epoch in range(2):
            got = []
            for batch in loader:
                assert nbytes == 8 or cuda.is_pinned(batch)
                got.append(int(batch[0]))
                batch += 1  # writable, and private
            assert got == list(range(20)), epoch
    assert cuda.events.count("register") == (0 if nbytes == 8 else 2)
    assert cuda.events.count("pinned") == (40 if nbytes == 8 else 0)


@pytest.mark.parametrize("works", ["when told", "when asked", "when awaited"])
def test_copies_that_run_late_find_the_batch_as_it_was(cuda, works):
    cuda.works = works
    copies = []
    with loader_on(cuda, numbers(40), pin_memory=True) as loader:
        for number, batch in enumerate(loader):
            copies.append(cuda.copy(batch))
            del batch
            if works == "when told" and number % 2:
                cuda.run()
    cuda.run()
    assert [set(copy.tolist()) for copy in copies] == [{number} for number in range(40)]
    assert ("wait" in cuda.events) == (works == "when awaited")


def test_batches_that_are_hoarded_are_pinned_and_there_is_one_warning(cuda):
    loader = loader_on(cuda, lambda: iter(numbers(12)), pin_memory=True)
    with loader, pytest.warns(RuntimeWarning, match="more than 3 batches of one worker are kept") as caught:
        batches = list(loader)
    assert [int(batch[0]) for batch in batches] == list(range(12))
    assert cuda.events.count("pinned") == 9
    assert files_of(caught) == [__file__]


def test_a_larger_batch_brings_another_segment_and_the_old_one_ends_with_its_last_view(cuda):
    sizes = [5_000, 5_000, 50_000, 5_000, 200_000]
    with loader_on(cuda, [np.full(size, size) for size in sizes], pin_memory=True) as loader:
        iterator = iter(loader)
        first = next(iterator)
        rest = list(iterator)
        assert [int(batch[0]) for batch in (first, *rest)] == sizes
        assert all(map(cuda.is_pinned, (first, *rest)))
        assert len(cuda.registered) == 3
        del first, rest[0], iterator
        assert len(cuda.registered) == 2
        del rest


def test_batches_that_are_held_when_the_loader_closes_stay_pinned(cuda):
    loader = loader_on(cuda, numbers(4), pin_memory=True)
    batch = next(iter(loader))
    loader.close()
    assert (cuda.is_pinned(batch), int(batch[-1])) == (True, 0)
    del batch
    assert cuda.registered == {}


def test_an_exception_in_the_training_loop_leaves_nothing_registered(cuda):
    def train():
        with loader_on(cuda, numbers(10), pin_memory=True) as loader:
            for batch in loader:
                cuda.copy(batch)
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert cuda.registered == {}


def test_the_death_of_a_worker_leaves_its_batches_whole(cuda):
    def generate():
        yield from numbers(2)
        import os

        os._exit(3)

    loader = loader_on(cuda, generate, pin_memory=True)
    iterator = iter(loader)
    kept = [next(iterator), next(iterator)]
    with pytest.raises(WorkerDied):
        next(iterator)
    assert [cuda.is_pinned(batch) for batch in kept] == [True, True]
    assert [int(batch[-1]) for batch in kept] == [0, 1]
    del kept, iterator
    assert cuda.registered == {}


@pytest.mark.parametrize("workers", [0, 1])
def test_memory_that_cuda_refuses_makes_no_difference_but_a_warning(cuda, workers):
    cuda.refuses = "operation not supported"
    loader = loader_on(cuda, numbers(5), workers, pin_memory=True)
    with loader, pytest.warns(RuntimeWarning, match="not be pinned .operation not supported.") as caught:
        assert [int(batch[0]) for _ in range(2) for batch in loader] == 2 * list(range(5))
    assert files_of(caught) == [__file__]


def test_without_cuda_it_warns_once_and_goes_on():
    loader = loader_on(None, numbers(3, 8), pin_memory=True)
    with loader, pytest.warns(RuntimeWarning, match="pin_memory=True has no effect") as caught:
        assert [int(batch[0]) for _ in range(2) for batch in loader] == [0, 1, 2, 0, 1, 2]
    assert files_of(caught) == [__file__]


def test_without_workers_it_pins_too(cuda):
    loader = loader_on(cuda, numbers(3), workers=0, pin_memory=True)
    assert [int(batch[0]) for batch in loader] == [0, 1, 2]
    assert cuda.events == ["pinned"] * 3


def test_an_epoch_left_early_gives_its_blocks_back(cuda):
    with loader_on(cuda, numbers(30), pin_memory=True) as loader:
        for _ in range(5):
            for batch in itertools.islice(loader, 2):
                cuda.copy(batch)
        assert [int(batch[0]) for batch in loader] == list(range(30))


@pytest.mark.parametrize("there_is_cuda", [True, False])
def test_what_stages_behind_the_workers_yield_is_pinned_if_there_is_cuda(cuda, monkeypatch, there_is_cuda):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(len(tensor)) or tensor)
    samples = DataPipeline(range(12)).batched(3)
    loader = loader_on(cuda if there_is_cuda else None, samples, pin_memory=True)
    with loader, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [len(batch) for batch in loader.unbatched().batched(4)] == [4, 4, 4]
    assert pinned == ([4, 4, 4] if there_is_cuda else [])


class Custom:
    """What has its own way to be pinned, as torch's DataLoader knows it."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.pinned = False

    def pin_memory(self):
        self.pinned = True
        return self


def collate_custom(samples):
    return Custom(torch.tensor(samples)), torch.ones(20_000)


def test_a_data_loader_gets_its_blocks_pinned_and_calls_pin_memory_of_objects(cuda, monkeypatch):
    monkeypatch.setattr("mpwds.loader.dataloader.iterator.CudaAccess", lambda: FakeAccess(cuda))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "is_pinned", cuda.is_pinned)
    copied = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: copied.append(tensor.shape) or tensor)
    loader = mpwds.DataLoader(
        range(4), 2, num_workers=1, collate_fn=collate_custom, pin_memory=True, multiprocessing_context="fork"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for custom, ones in loader:
            assert (custom.pinned, cuda.is_pinned(custom.tensor), cuda.is_pinned(ones)) == (True, True, True)
            del custom, ones
    loader.close()
    assert cuda.events.count("register") == 1
    assert copied == [(20_000,)] * 2  # torch's function, which leaves what is pinned as it is
