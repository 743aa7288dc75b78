"""Indexed datasets in MultiLoader and DataLoaders."""

import random
import subprocess
import sys

import numpy as np
import pytest
import torch.utils.data

import mpwds

pytestmark = pytest.mark.usefixtures("quick_workers")

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


def drawn(number):
    return np.random.random()


DRAWS = """
import sys
import mpwds
import numpy as np

def drawn(number):
    return np.random.random(), "torch" in sys.modules

dataset = mpwds.IndexedDataset(range(11)).map(drawn)
for persistent in False, True:
    options = {"num_workers": 1, "persistent_workers": persistent}
    loader = mpwds.DataLoader(dataset, sampler=[*range(11), 0, 0], collate_fn=list, **options)
    draws = [drawn for _ in range(3) for batch in loader for drawn in batch]
    print(len({number for number, _ in draws}), any(has_torch for _, has_torch in draws))
"""


def test_each_access_in_a_worker_draws_new_numbers_also_where_torch_is_not_imported(tmp_path):
    (tmp_path / "program.py").write_text(DRAWS)
    done = subprocess.run([sys.executable, "program.py"], capture_output=True, text=True, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("39 False\n" * 2, "")


def test_without_workers_each_epoch_draws_new_numbers_and_a_set_one_the_same():
    loader = mpwds.DataLoader(mpwds.IndexedDataset(range(11)).map(drawn), collate_fn=list)
    epochs = [[number for batch in loader for number in batch] for _ in range(3)]
    assert len({number for epoch in epochs for number in epoch}) == 33
    loader.set_epoch(1)
    assert [number for batch in loader for number in batch] == epochs[1]


CHANGES = [
    (
        lambda: mpwds.IndexedDataset(range(40), "chunked", chunksize=7),
        lambda: mpwds.IndexedDataset(range(40), "chunked", chunksize=9),
    ),
    (lambda: mpwds.IndexedDataset(range(40), "global"), lambda: mpwds.IndexedDataset(range(40), "shards")),
    (
        lambda: mpwds.IndexedDataset(range(40), "global", seed=1),
        lambda: mpwds.IndexedDataset(range(40), "global", seed=2),
    ),
]


@pytest.mark.parametrize(("saved", "loaded"), CHANGES)
def test_a_state_of_another_order_is_refused_by_data_loaders_and_iterators(saved, loaded):
    for make, message in (
        (lambda dataset: mpwds.DataLoader(dataset, 5), "(pipeline|seed) of the loader changed"),
        (lambda dataset: mpwds.WebLoader(dataset, batch_size=5), "(pipeline|seed) of the loader changed"),
        (iter, "the state is of the order"),
    ):
        first = make(saved())
        next(iter(first))
        state = first.state_dict()
        make(saved()).load_state_dict(state)
        with pytest.raises(ValueError, match=message):
            make(loaded()).load_state_dict(state)


@pytest.mark.parametrize(
    ("repeat", "workers", "found"), [(2, 0, 82), (2, 2, 82), (None, 0, 15), (None, 1, 15)]
)
def test_repeated_samples_come_as_often_in_a_data_loader(repeat, workers, found):
    dataset = mpwds.IndexedDataset(Numbers())
    dataset = dataset.with_epoch(15) if repeat is None else dataset.repeat(repeat)
    assert len(list(dataset)) == found
    assert len(list(mpwds.DataLoader(dataset, batch_size=1, num_workers=workers))) == found
    with pytest.raises(TypeError, match="with_length"):
        len(dataset)
    assert len(dataset.with_length(found, silent=True)) == found
