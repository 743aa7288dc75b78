"""DataLoader: what trainers look for, loaders that must pass for one, and what must not be done twice."""

import pytest
import torch
import torch.utils.data

import mpwds
from mpwds.loader.dataloader.data_loader import check_not_divided_again

pytestmark = pytest.mark.usefixtures("quick_workers")


class Told(torch.utils.data.Dataset):
    """Remembers the epochs that it was told."""

    def __init__(self):
        self.epochs = []

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index

    def set_epoch(self, epoch):
        self.epochs.append(epoch)


class ToldSampler(Told, torch.utils.data.Sampler):
    def __iter__(self):
        return iter(range(4))


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda sampler: {"sampler": sampler},
        lambda sampler: {"batch_sampler": torch.utils.data.BatchSampler(sampler, 2, drop_last=False)},
        lambda sampler: {"batch_sampler": sampler},
    ],
    ids=["sampler", "in a batch sampler", "batch sampler"],
)
def test_dataset_and_sampler_are_told_the_epoch_once(wrapped):
    dataset, sampler = Told(), ToldSampler()
    mpwds.DataLoader(dataset, **wrapped(sampler)).set_epoch(3)
    assert (dataset.epochs, sampler.epochs) == ([3], [3])


@pytest.mark.parametrize(
    ("loader_class", "num_workers"), [(mpwds.DataLoader, 0), (mpwds.DataLoader, 2), (mpwds.WebLoader, 1)]
)
def test_a_pipeline_runs_the_epoch_it_is_told(loader_class, num_workers):
    pipeline = mpwds.DataPipeline(range(40)).shuffle(40)
    loader = loader_class(pipeline, batch_size=None, num_workers=num_workers)

    def epoch(number):
        loader.set_epoch(number)
        return list(loader)

    first, second = epoch(0), epoch(1)
    assert first != second
    assert (epoch(0), epoch(1)) == (first, second)


@pytest.mark.parametrize("stages", [lambda loader: loader, lambda loader: loader.rebatched(3)])
def test_a_loader_passes_for_a_dataloader(stages):
    with mpwds.MultiLoader(mpwds.DataPipeline(range(7)).batched(2), workers=2) as loader:
        face = mpwds.DataLoader(stages(loader), batch_size=None)
        expected = [batch.tolist() for batch in stages(loader)]
        got = [batch.tolist() for batch in face]
        assert isinstance(face, torch.utils.data.DataLoader)
        assert got == expected
        assert len(face) == len(stages(loader)) == len(expected)


def test_a_loader_gets_no_workers_afterwards_either():
    loader = mpwds.DataLoader(mpwds.MultiLoader([1, 2]), batch_size=None)
    loader.num_workers = 2
    with pytest.raises(ValueError, match="has workers of its own"):
        iter(loader)


PIPELINE = mpwds.DataPipeline(range(10))
LOADERS = {
    "loader": mpwds.MultiLoader(PIPELINE, workers=1),
    "stages behind a loader": mpwds.MultiLoader(PIPELINE, workers=1).unbatched(),
    "WebLoader": mpwds.WebLoader(PIPELINE, num_workers=1),
}
DIVIDING = {"pipeline": PIPELINE, "shards": mpwds.SimpleShardList("a.tar"), **LOADERS}


@pytest.fixture
def of_two_ranks(at_rank):
    at_rank(0, 2)


@pytest.mark.parametrize("dataset", DIVIDING.values(), ids=DIVIDING)
def test_what_divides_itself_is_not_divided_again(of_two_ranks, dataset):
    with pytest.raises(ValueError, match=r"divides itself among the 2 ranks.*MultiLoader"):
        check_not_divided_again(dataset)


def test_what_does_not_is_divided(of_two_ranks):
    check_not_divided_again([1, 2, 3])
    assert not mpwds.DataLoader([1, 2, 3])._is_accelerate_prepared
    with pytest.raises(ValueError, match="divides itself"):
        assert mpwds.DataLoader(PIPELINE)._is_accelerate_prepared


@pytest.mark.parametrize("dataset", DIVIDING.values(), ids=DIVIDING)
def test_one_rank_has_nothing_to_divide(dataset):
    check_not_divided_again(dataset)


@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
def test_a_loaders_workers_are_enough(loader):
    with pytest.raises(
        ValueError, match="has workers of its own, and each of 2 more would deliver all of it"
    ):
        mpwds.DataLoader(loader, num_workers=2)
    mpwds.DataLoader(loader, num_workers=0)
