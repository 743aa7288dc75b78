"""use_in_accelerate: what Accelerate builds of a DataLoader is ours."""

import sys

import accelerate.accelerator as preparing
import accelerate.data_loader as building
import pytest
import torch.utils.data

import mpwds

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture(autouse=True)
def accelerate_as_it_was(monkeypatch):
    """Accelerate is changed for one test only."""
    monkeypatch.setattr(building, "DataLoader", torch.utils.data.DataLoader)
    monkeypatch.setattr(preparing, "prepare_data_loader", building.prepare_data_loader)


def prepared(loader):
    return preparing.Accelerator(cpu=True).prepare(loader)


@pytest.mark.parametrize("given", [torch.utils.data.DataLoader, mpwds.DataLoader])
def test_a_prepared_loader_is_ours_and_delivers_the_same(given):
    mpwds.use_in_accelerate()
    loader = prepared(given(list(range(10)), batch_size=4, num_workers=2))
    assert type(loader.base_dataloader) is mpwds.DataLoader
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_what_is_left_of_an_epoch_is_loaded_by_ours():
    mpwds.use_in_accelerate()
    loader = prepared(mpwds.DataLoader(list(range(10)), batch_size=2, num_workers=2))
    rest = building.skip_first_batches(loader, 3)
    assert type(rest.base_dataloader) is mpwds.DataLoader
    assert [batch.tolist() for batch in rest] == [[6, 7], [8, 9]]


def test_without_it_a_prepared_loader_is_torchs():
    loader = prepared(mpwds.DataLoader(list(range(4)), num_workers=1))
    assert type(loader.base_dataloader) is torch.utils.data.DataLoader


@pytest.mark.parametrize(
    ("given", "used"),
    [(torch.utils.data.DataLoader, True), (mpwds.DataLoader, True), (mpwds.DataLoader, False)],
)
def test_several_ranks_are_not_given_parts_of_what_divides_itself(given, used, monkeypatch):
    if used:
        mpwds.use_in_accelerate()
    loader = given(mpwds.DataPipeline(range(10)), batch_size=2)
    accelerator = preparing.Accelerator(cpu=True)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="divides itself among the 2 ranks"):
        accelerator.prepare(loader)


def test_loaders_that_divide_themselves_are_left_as_they_are():
    mpwds.use_in_accelerate()
    loader = mpwds.MultiLoader([1, 2, 3], workers=1)
    stages = loader.batched(2)
    accelerator = preparing.Accelerator(cpu=True)
    assert accelerator.prepare(loader) is loader
    assert accelerator.prepare(stages) is stages


def test_calling_it_again_changes_nothing():
    mpwds.use_in_accelerate()
    prepare = preparing.prepare_data_loader
    mpwds.use_in_accelerate()
    assert preparing.prepare_data_loader is prepare


def test_without_accelerate_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate.accelerator", None)
    with pytest.raises(ImportError, match=r"pip install 'mpwds\[huggingface\]'"):
        mpwds.use_in_accelerate()


def test_an_accelerate_that_builds_in_another_way_is_refused(monkeypatch):
    monkeypatch.delattr(building, "DataLoaderAdapter")
    with pytest.raises(RuntimeError, match=r"needs accelerate 0\.34 or later"):
        mpwds.use_in_accelerate()
    assert building.DataLoader is torch.utils.data.DataLoader
