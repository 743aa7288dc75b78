"""Indexed datasets in MultiLoader and DataLoaders."""

import random

import pytest
import torch.utils.data

import mpwds

pytestmark = pytest.mark.usefixtures("nothing_left")

KINDS = ["global", "chunked", "shards", False]


class Numbers:
    """Indexed shards whose 41 samples are numbers."""

    urls = ("a", "b", "c", "d")
    lengths = (9, 0, 16, 16)

    def read(self, shard, index):
        return sum(self.lengths[:shard]) + index

    def close(self):
        pass


def augmented(number):
    return number, random.random()


@pytest.mark.parametrize("kind", KINDS)
def test_multi_loader_delivers_each_sample_once_and_knows_how_many(kind):
    dataset = mpwds.IndexedDataset(Numbers(), kind, chunksize=7)
    with mpwds.MultiLoader(dataset, workers=3, start_method="fork") as loader:
        epochs = [list(loader) for _ in range(2)]
        assert len(loader) == 41
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(41))
    if kind:
        assert epochs[0] != epochs[1]


@pytest.mark.parametrize("kind", ["global", "chunked"])
def test_multi_loader_resumes_exactly(kind):
    def loader():
        return mpwds.MultiLoader(
            mpwds.IndexedDataset(Numbers(), kind).map(augmented), workers=2, start_method="fork"
        )

    with loader() as first:
        batches = iter(first)
        for _ in range(17):
            next(batches)
        state = first.state_dict()
        rest = list(batches)
    with loader() as second:
        second.load_state_dict(state)
        assert list(second) == rest


def test_ranks_have_equally_many_batches(at_rank):
    lengths, seen = [], []
    for rank in range(3):
        at_rank(rank, 3)
        dataset = mpwds.IndexedDataset(Numbers(), "global").batched(4)
        with mpwds.MultiLoader(dataset, workers=2, even="pad", start_method="fork") as loader:
            batches = list(loader)
            lengths.append((len(loader), len(batches)))
            seen += [number for batch in batches for number in batch.tolist()]
    assert len(set(lengths)) == 1
    assert set(seen) == set(range(41))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("package", [mpwds, torch.utils.data], ids=["mpwds", "torch"])
def test_data_loaders_deliver_each_sample_once(package, workers, kind):
    dataset = mpwds.IndexedDataset(Numbers(), kind, chunksize=7)
    context = "fork" if workers else None
    chosen = {} if kind else {"shuffle": True}  # torch chooses the order of a dataset without one
    loader = package.DataLoader(
        dataset, batch_size=5, num_workers=workers, multiprocessing_context=context, **chosen
    )
    epochs = [[number for batch in loader for number in batch.tolist()] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(41))
    if kind != "shards":  # three shards might come in the same order again
        assert epochs[0] != epochs[1]
    assert len(loader) == 9


def test_a_data_loader_refuses_to_shuffle_what_has_an_order():
    with pytest.raises(ValueError, match="shuffle"):
        mpwds.DataLoader(mpwds.IndexedDataset(Numbers(), "global"), shuffle=True)


def test_a_sampler_chooses_samples():
    loader = mpwds.DataLoader(
        mpwds.IndexedDataset(Numbers()), sampler=[40, 3, 3], batch_size=None, num_workers=1
    )
    assert [int(number) for number in loader] == [40, 3, 3]


@pytest.mark.parametrize("package", [mpwds, torch.utils.data], ids=["mpwds", "torch"])
def test_workers_that_persist_draw_other_numbers_in_each_epoch(package):
    dataset = mpwds.IndexedDataset(Numbers()).map(augmented)
    options = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "fork"}
    loader = package.DataLoader(dataset, batch_size=None, **options)
    epochs = [[float(drawn) for _, drawn in loader] for _ in range(2)]
    assert len({*epochs[0], *epochs[1]}) == 82
