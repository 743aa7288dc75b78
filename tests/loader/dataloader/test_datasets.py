"""What must not be done twice: dividing among ranks, and iterating with workers."""

import pytest

import mpwds
from mpwds.loader.dataloader.data_loader import check_not_divided_again

pipeline = mpwds.DataPipeline(range(10))
loaders = {
    "loader": mpwds.MultiLoader(pipeline, workers=1),
    "stages behind a loader": mpwds.MultiLoader(pipeline, workers=1).unbatched(),
    "WebLoader": mpwds.WebLoader(pipeline, num_workers=1),
}
dividing = {"pipeline": pipeline, "shards": mpwds.SimpleShardList("a.tar"), **loaders}


@pytest.fixture
def of_two_ranks(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")


@pytest.mark.parametrize("dataset", dividing.values(), ids=dividing)
def test_what_divides_itself_is_not_divided_again(of_two_ranks, dataset):
    with pytest.raises(ValueError, match=r"divides itself among the 2 ranks.*MultiLoader"):
        check_not_divided_again(dataset)


def test_what_does_not_is_divided(of_two_ranks):
    check_not_divided_again([1, 2, 3])


@pytest.mark.parametrize("dataset", dividing.values(), ids=dividing)
def test_one_rank_has_nothing_to_divide(dataset):
    check_not_divided_again(dataset)


@pytest.mark.parametrize("loader", loaders.values(), ids=loaders)
def test_a_loaders_workers_are_enough(loader):
    with pytest.raises(
        ValueError, match="has workers of its own, and each of 2 more would deliver all of it"
    ):
        mpwds.DataLoader(loader, num_workers=2)
    mpwds.DataLoader(loader, num_workers=0)
