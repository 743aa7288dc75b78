"""Every kind of source, run by worker processes: those of MultiLoader and those of torch's DataLoader."""

import os
import warnings
from collections import Counter
from itertools import islice
from pathlib import Path

import msgpack
import pytest
import torch.utils.data

import mpwds
from mpwds.extradatasets import MockDataset, ResizedDataset
from mpwds.loader.multi_loader import MultiLoader
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.sources.directory_shards import DirectoryShardList
from mpwds.pipeline.sources.mix import RandomMix, RoundRobin
from mpwds.pipeline.sources.samples import msgpacks_to_samples, tarfile_samples
from mpwds.pipeline.sources.shards import (
    ResampledShards,
    ShardList,
    SimpleShardList,
    resampled,
    split_by_node,
    split_by_worker,
)
from mpwds.pipeline.sources.specs import MultiShardSample
from mpwds.pipeline.sources.webdataset import WebDataset
from mpwds.storage.writing.tar_writer import TarWriter

pytestmark = pytest.mark.usefixtures("quick_workers")

ONCE = Counter(range(12))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four tar shards and four files of messages, of 12 samples each."""
    folder = tmp_path_factory.mktemp("sources")
    for shard in range(4):
        numbers = range(3 * shard, 3 * shard + 3)
        with TarWriter(str(folder / f"{shard}.tar")) as archive:
            for number in numbers:
                archive.write({"__key__": str(number), "cls": number})
        messages = [
            msgpack.packb({"__key__": str(number), "cls": str(number).encode()}) for number in numbers
        ]
        (folder / f"{shard}.msgpacks").write_bytes(b"".join(messages))
    return folder


def in_halves(shards):
    """A splitter of a user's, by the environment that workers have."""
    info = torch.utils.data.get_worker_info()
    return islice(shards, info.id, None, info.num_workers) if info else shards


SOURCES = {
    "WebDataset": (lambda tar, _: WebDataset(tar, shardshuffle=True), ONCE),
    "a splitter": (lambda tar, _: WebDataset(tar, workersplitter=in_halves), ONCE),
    "no splitter": (lambda tar, _: WebDataset(tar, workersplitter=None), ONCE + ONCE),
    "resampled": (lambda tar, _: WebDataset(tar, resampled=True).with_epoch(20), 40),
    "ShardList": (lambda tar, _: DataPipeline(ShardList(tar), tarfile_samples), ONCE),
    "SimpleShardList": (
        lambda tar, _: DataPipeline(SimpleShardList(tar), split_by_node, split_by_worker, tarfile_samples),
        ONCE,
    ),
    "ResampledShards": (lambda tar, _: DataPipeline(ResampledShards(tar, 5), tarfile_samples), 30),
    "resampled stage": (lambda tar, _: DataPipeline(ShardList(tar), resampled(5), tarfile_samples), 30),
    "MultiShardSample": (
        lambda tar, _: DataPipeline(
            MultiShardSample({"datasets": [{"shards": tar, "choose": 2}, {"shards": tar}]}),
            split_by_worker,
            tarfile_samples,
        ),
        18,
    ),
    "specification": (
        lambda tar, _: WebDataset({"datasets": [{"shards": tar, "weight": 2}, {"shards": tar}]}),
        ONCE + ONCE,
    ),
    "messages": (lambda _, messages: DataPipeline(ShardList(messages), msgpacks_to_samples()), ONCE),
    "RandomMix": (
        lambda tar, _: RandomMix([WebDataset(tar), WebDataset(tar)], [3, 1], longest=True),
        ONCE + ONCE,
    ),
    "RoundRobin": (lambda tar, _: RoundRobin([WebDataset(tar), WebDataset(tar)], longest=True), ONCE + ONCE),
    "MockDataset": (lambda tar, _: MockDataset({"__key__": "a", "cls": b"7"}, 6), Counter({7: 12})),
    "ResizedDataset": (lambda tar, _: ResizedDataset(WebDataset(tar), 8), 16),
    "repeat": (lambda tar, _: WebDataset(tar).repeat(2), ONCE + ONCE),
}


def check(source, folder, load):
    make, expected = SOURCES[source]
    dataset = make(str(folder / "{0..3}.tar"), str(folder / "{0..3}.msgpacks")).decode().to_tuple("cls")
    epochs = [[int(number) for (number,) in load(dataset)] for _ in range(2)]
    for numbers in epochs:
        if isinstance(expected, int):
            assert len(numbers) == expected
            assert set(numbers) <= set(range(12))
        else:
            assert Counter(numbers) == expected


@pytest.mark.parametrize("source", SOURCES)
def test_in_the_workers_of_multiloader(source, folder):
    def load(dataset):
        with MultiLoader(dataset, workers=2, start_method="fork") as loader:
            yield from loader

    check(source, folder, load)


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_in_the_workers_of_dataloader(source, folder):
    check(
        source, folder, lambda dataset: torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)
    )


def test_in_fresh_interpreters_where_everything_is_pickled(folder):
    def mine(shards):
        return islice(shards, int(os.environ["WORKER"]), None, int(os.environ["NUM_WORKERS"]))

    tar = str(folder / "{0..3}.tar")
    specified = WebDataset({"datasets": [{"shards": tar}]})
    mix = RandomMix([WebDataset(tar, workersplitter=mine), specified], longest=True)
    with MultiLoader(mix.to_tuple("cls"), workers=2) as loader:
        assert Counter(int(number) for (number,) in loader) == ONCE + ONCE


@pytest.mark.parametrize("kind", ["MultiLoader", "DataLoader"])
def test_a_directory_is_shared_by_workers_and_emptied(folder, tmp_path, kind):
    for shard in folder.glob("*.tar"):
        os.link(shard, tmp_path / shard.name)
    dataset = DataPipeline(
        DirectoryShardList(f"{tmp_path}/", mode="unlink", poll=None), tarfile_samples
    ).to_tuple("cls")
    if kind == "MultiLoader":
        with MultiLoader(dataset, workers=2, start_method="fork") as loader:
            numbers = [int(number) for (number,) in loader]
    else:
        loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)
        numbers = [int(number) for (number,) in loader]
    assert Counter(numbers) == ONCE
    assert list(Path(tmp_path).iterdir()) == []


def test_a_worker_for_which_a_directory_has_no_shard_holds_nobody_back(folder, tmp_path):
    shard = next(folder.glob("*.tar"))
    os.link(shard, tmp_path / shard.name)
    waiting = WebDataset(f"{tmp_path}/", mode="keep").to_tuple("cls")
    with MultiLoader(waiting, workers=2, start_method="fork", in_order=True, timeout=600) as loader:
        assert len(list(islice(loader, 3))) == 3


@pytest.mark.parametrize("kind", ["MultiLoader", "DataLoader"])
def test_a_loader_is_a_source_too_and_is_repeated(folder, kind):
    batches = WebDataset(str(folder / "{0..3}.tar")).to_tuple("cls").batched(4)
    if kind == "MultiLoader":
        loader = MultiLoader(batches, workers=2, start_method="fork")
    else:
        loader = torch.utils.data.DataLoader(batches, batch_size=None, num_workers=2)
    with DataPipeline(loader).map(lambda batch: len(batch[0])) as dataset:
        assert sorted(dataset) == [2, 2, 4, 4]
        assert len(list(dataset.with_epoch(5))) == 5


@pytest.mark.parametrize("stages", [[], [lambda elements: elements]])
def test_workers_do_not_each_deliver_all_of_a_loader_that_is_a_source(stages):
    source = DataPipeline(MultiLoader(range(4), workers=0).compose(*stages)).shuffle(2)
    with (
        MultiLoader(source, workers=2) as loader,
        pytest.raises(TypeError, match="each worker would deliver"),
    ):
        list(loader)


def test_a_loader_that_is_a_source_runs_the_epoch_of_the_pipeline():
    def make():
        shuffled = DataPipeline(range(9)).shuffle(9)
        return RoundRobin([MultiLoader(shuffled, workers=0, output="numpy", seed=seed) for seed in (1, 2)])

    dataset, other = make(), make()
    epochs = [[int(element) for element in dataset] for _ in range(2)]
    other.set_epoch(1)
    assert [int(element) for element in other] == epochs[1] != epochs[0]
    with MultiLoader(make(), workers=0, output="numpy") as loader:
        begun = [int(element) for element in islice(loader, 5)]
        with pytest.warns(UserWarning, match="without addresses"):
            loader.load_state_dict(loader.state_dict())
            assert begun + [int(element) for element in loader] == epochs[0]


def test_a_pipeline_whose_stages_hold_elements_of_loaders_runs_again_to_resume():
    loaders = [MultiLoader(range(n, n + 9), workers=0, output="numpy").map(int) for n in (0, 100)]
    dataset = RoundRobin(loaders).shuffle(3)
    whole = [element for _, element in dataset.stream()]
    stream = dataset.stream()
    begun = [element for _, element in islice(stream, 5)]
    state = stream.state_dict()
    again = dataset.stream()
    with pytest.warns(UserWarning, match="without addresses"):
        again.load_state_dict(state)
    assert begun + [element for _, element in again] == whole


@pytest.mark.parametrize(
    ("make", "length"),
    [
        (lambda dataset: MultiLoader(dataset), 3),
        (lambda dataset: MultiLoader(dataset.batched(2), in_order=False), 2),
        (lambda dataset: MultiLoader(dataset).batched(4), 1),
        (lambda dataset: MultiLoader(dataset.with_epoch(5)), 5),
        (lambda dataset: MultiLoader(dataset).with_epoch(9), 9),
        (lambda dataset: mpwds.DataLoader(dataset, None, num_workers=2, persistent_workers=True), 3),
        (lambda dataset: mpwds.WebLoader(dataset, batch_size=2, num_workers=2, persistent_workers=True), 2),
    ],
)
def test_workers_without_a_shard_are_idle_with_one_warning_at_the_users_line(folder, make, length, recwarn):
    warnings.simplefilter("always")
    loader = make(WebDataset(str(folder / "0.tar")).to_tuple("cls"))
    for _ in range(2):
        assert sum(1 for _ in loader) == length
    assert [(w.filename, str(w.message)[:34]) for w in recwarn] == [
        (__file__, "there are fewer shards than worker")
    ]
    loader.close()


@pytest.mark.filterwarnings("ignore:there are fewer shards than workers")
def test_an_epoch_with_idle_workers_continues_from_its_state_exactly(folder):
    dataset = WebDataset(str(folder / "{0,1}.tar"), shardshuffle=True).to_tuple("cls")
    with MultiLoader(dataset, workers=4) as loader:
        whole = list(loader)
        for stop in range(1, 6):
            loader.set_epoch(0)
            first = list(islice(loader, stop))
            loader.load_state_dict(loader.state_dict())
            assert first + list(loader) == whole
