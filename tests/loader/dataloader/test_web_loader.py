"""WebLoader: a DataLoader with webdataset's methods."""

import time

import psutil
import pytest
import torch

import mpwds
from mpwds.loader.dataloader.web_loader import WebLoader

pytestmark = pytest.mark.usefixtures("one_fork_server")


def test_delivers_tensors_and_runs_further_stages_here(shards):
    dataset = mpwds.WebDataset(shards).decode().to_tuple("npy", "cls").batched(5)
    with WebLoader(dataset, batch_size=None, num_workers=2) as loader:
        images, labels = next(iter(loader))
        assert (images.shape, type(labels)) == ((5, 4, 3), torch.Tensor)
        again = list(loader.unbatched().shuffle(100).batched(8))
        assert sorted(label for _, labels in again for label in labels.tolist()) == list(range(40))
        assert all((images[:, 0, 0] == labels).all() for images, labels in again)
        rows = [labels.tolist() for _, labels in loader.rebatched(16, shuffle=20)]
        assert sorted(label for labels in rows for label in labels) == list(range(40))
        assert [len(labels) for labels in rows] == [16, 16, 8]


def test_repeats_and_has_a_length(shards):
    loader = WebLoader(mpwds.WebDataset(shards).decode().to_tuple("cls"), batch_size=4, num_workers=2)
    assert len(list(loader.repeat(nepochs=2))) == 20
    assert len(list(loader.with_epoch(13))) == 13
    assert len(loader.with_length(10, silent=True)) == 10


def test_closing_it_ends_its_workers():
    loader = WebLoader(range(20), num_workers=2, persistent_workers=True)
    next(iter(loader))
    pids = loader.loader._iterator.worker_pids
    loader.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_another_epoch_and_another_stage_begin_at_the_start():
    loader = WebLoader(range(8), batch_size=2).unbatched()
    elements = iter(loader)
    next(elements)
    state = loader.state_dict()
    assert (state["delivered"], loader.map(int).state_dict()["delivered"]) == (1, 0)
    loader.load_state_dict(state)
    assert len(list(loader.map(int))) == 8
    loader.load_state_dict(state)
    loader.set_epoch(1)
    assert len(list(loader)) == 8


@pytest.mark.filterwarnings("ignore:.* resume by running the first")
def test_stages_run_ahead_in_a_thread_and_resume():
    loader = WebLoader(range(40), batch_size=4).unbatched().batched(5).map(torch.neg).prefetch(2)
    elements = iter(loader)
    first = [next(elements).tolist() for _ in range(3)]
    state = loader.state_dict()
    del elements
    loader.load_state_dict(state)
    rest = [batch.tolist() for batch in loader]
    assert [number for batch in first + rest for number in batch] == [-number for number in range(40)]


def test_a_state_ends_the_iteration_that_runs_ahead_before_it_sets_the_generator():
    def make():
        generator = torch.Generator().manual_seed(0)
        return WebLoader(Slow(), batch_size=2, shuffle=True, generator=generator).map(torch.neg).prefetch(2)

    expected = make()
    expected = [[batch.tolist() for batch in expected] for _ in range(2)]
    loader = make()
    left = iter(loader)
    begun = [next(left).tolist() for _ in range(4)]  # the thread makes the last one now, and ends the order
    loader.load_state_dict(loader.state_dict())
    with pytest.warns(UserWarning, match="resume by running the first 4 elements"):
        assert begun + [batch.tolist() for batch in loader] == expected[0]
    assert [batch.tolist() for batch in loader] == expected[1]


def test_an_epoch_that_was_left_takes_no_batches_of_the_next_one_with_the_same_workers():
    with WebLoader(range(8), batch_size=2, num_workers=1, persistent_workers=True).map(torch.neg) as loader:
        left = iter(loader)
        next(left)
        batches = iter(loader)
        assert list(left) == []
        assert [batch.tolist() for batch in batches] == [[0, -1], [-2, -3], [-4, -5], [-6, -7]]


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        time.sleep(0.02)
        return index


@pytest.mark.parametrize(
    "loader",
    [
        WebLoader(range(8), in_order=False).unbatched(),
        WebLoader(range(8), batch_size=2).unbatched().map(float, threads=2, in_order=False),
    ],
)
def test_what_has_no_order_is_not_run_again(loader):
    next(iter(loader))
    with pytest.raises(ValueError, match="with in_order=False batches come in another order"):
        loader.load_state_dict(loader.state_dict())


def test_says_what_it_is():
    assert (
        repr(WebLoader([1, 2], num_workers=2).unbatched())
        == "WebLoader([1, 2], num_workers=2)\n    .unbatched()"
    )
