"""Pipelines of the shards of a description, and their length."""

import pytest

from mpwds.loader.multi_loader import MultiLoader
from mpwds.loader.worker.elements import count_delivered
from mpwds.pipeline.context import Context
from mpwds.pipeline.handlers import warn_and_continue
from mpwds.pipeline.sources.webdataset import WebDataset
from mpwds.pipeline.stream import LengthUnknown
from mpwds.storage.indexed.describing import create_description, write_description
from mpwds.storage.streams.patterns import expand_urls


@pytest.fixture
def description(shards, tmp_path):
    path = str(tmp_path / "index.json")
    write_description(create_description(expand_urls(shards)), path)
    return path


def test_a_description_names_the_shards(description):
    dataset = WebDataset(description)
    assert [int(sample["cls"]) for sample in dataset] == list(range(20))
    assert repr(dataset) == f"WebDataset({description!r})"


def test_its_numbers_of_samples_give_the_length(description):
    dataset = WebDataset(description, shardshuffle=True)
    assert len(dataset) == len(list(dataset)) == 20
    assert len(dataset.decode().to_tuple("cls").shuffle(10)) == 20
    batches = dataset.decode().to_tuple("cls").batched(6)
    assert len(batches) == len(list(batches)) == 4
    assert len(dataset.with_length(7, silent=True)) == 7


@pytest.mark.parametrize("world_size", [1, 2])
def test_loaders_know_the_length(description, monkeypatch, world_size):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(world_size))
    batches = WebDataset(description).decode().to_tuple("cls").batched(6)
    with MultiLoader(batches, workers=2, start_method="fork") as loader:
        assert len(loader) == len(list(loader))
    with pytest.raises(LengthUnknown):  # even epochs count batches, as a description may be wrong
        count_delivered(batches, [Context(worker=n, workers=2) for n in range(2)], exact=True)


def test_a_length_that_is_not_known_is_an_error(description):
    parts = (WebDataset(description, repeat=2), WebDataset(description, resampled=True))
    for dataset in (*parts, WebDataset(description).select(bool), WebDataset(description).with_epoch(5)):
        with pytest.raises(TypeError, match="with_length"):
            len(dataset)


@pytest.mark.parametrize("options", [{"handler": warn_and_continue}, {"select_files": bool}])
def test_a_loader_of_a_reader_that_may_drop_samples_has_no_length(description, options):
    with pytest.raises(LengthUnknown, match="may drop") as caught:
        len(MultiLoader(WebDataset(description, **options)))
    assert "may drop" in caught.value.reason
