"""What ``DataLoader.stats()`` and ``WebLoader.stats()`` say."""

import json
import time

import numpy as np
import pytest
import torch

from mpwds import DataPipeline, MultiLoader, WebLoader
from mpwds.loader.dataloader.data_loader import DataLoader
from mpwds.loader.processes import processes
from tests.loader.faults.processes import wait_until_idle

pytestmark = pytest.mark.usefixtures("quick_workers")

WORKERS = [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        if index == 13:
            time.sleep(0.02)
        return np.zeros((3, 50, 50), np.float32), index


@pytest.mark.parametrize("options", WORKERS, ids=str)
def test_what_is_delivered_is_counted_by_epoch_and_from_the_start(options):
    loader = DataLoader(Images(), batch_size=6, **options)
    for _ in range(3):
        for _ in loader:
            pass
    stats, whole = loader.stats(), loader.stats("start")
    assert (stats.epoch, stats.batches, stats.samples) == (2, 4, 20)
    assert (whole.batches, whole.samples) == (12, 60)
    for each in (stats, whole):
        assert each.nbytes >= each.samples * 3 * 50 * 50 * 4
        assert len(each.workers) == max(options["num_workers"], 1)
        assert sum(worker.batches for worker in each.workers) == each.batches
        assert sum(worker.samples for worker in each.workers) == each.samples
        assert each.in_process == (options["num_workers"] == 0)
    assert "worker" in str(stats)
    json.dumps(stats.as_dict())


def test_what_workers_counted_still_counts_while_they_end(monkeypatch):
    counted = []

    def end_all(ending, grace_s):
        counted.append(sum(worker.samples for worker in loader.stats("start").workers))
        end(ending, grace_s)

    end = processes.end_all
    monkeypatch.setattr(processes, "end_all", end_all)
    loader = DataLoader(Images(), batch_size=6, num_workers=2)
    for _ in range(2):
        for _ in loader:
            pass
    assert sorted(set(counted)) == [20, 40]


@pytest.mark.parametrize("options", WORKERS[:2], ids=str)
def test_the_time_is_the_datasets_and_time_outside_the_loader_is_not_waited(options):
    loader = DataLoader(Images(), sampler=[13] * 16, batch_size=2, **options)
    for _ in loader:
        pass
    stats = loader.stats()
    (dataset, *_) = stats.stages
    assert dataset.name == "the dataset"
    assert dataset.seconds > 0.02 * 14
    seconds = stats.seconds
    time.sleep(0.05)
    assert loader.stats().seconds == seconds


def test_the_stages_of_a_pipeline_are_told_apart():
    loader = WebLoader(DataPipeline(range(40)).map(abs).batched(4), batch_size=None, num_workers=1)
    assert len(list(loader.unbatched())) == 40
    stats = loader.stats()
    assert {"map(abs)", "batched(4)"} <= {stage.name for stage in stats.stages}
    assert (stats.batches, stats.samples) == (10, 40)


def test_a_worker_that_has_no_task_waits_for_the_trainer():
    loader = DataLoader(range(12), num_workers=1, prefetch_factor=1)
    for _ in loader:
        wait_until_idle(loader.stats().workers[0].pid)
        time.sleep(0.02)
    (worker,) = loader.stats().workers
    assert worker.waiting_s > 0.02 * 9


def test_batches_that_were_copied_because_they_are_kept_are_counted_in_all_epochs():
    loader = DataLoader(Images(), batch_size=6, num_workers=1, prefetch_factor=1)
    kept = [list(loader) for _ in range(2)]
    assert [len(batches) for batches in kept] == [4, 4]
    assert [loader.stats(since).private_copies for since in ("epoch", "start")] == [2, 4]


@pytest.mark.parametrize("options", WORKERS[:2], ids=str)
def test_an_epoch_that_was_left_counts_no_more_time(options):
    loader = DataLoader(Images(), **options)
    for _ in loader:
        break
    seconds = loader.stats().seconds
    assert (loader.stats().batches, loader.stats().seconds) == (1, seconds)


@pytest.mark.parametrize(
    "make",
    [
        lambda _: torch.eye(3).to_sparse(),
        lambda _: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
    ],
    ids=["sparse", "nested"],
)
@pytest.mark.parametrize("options", WORKERS[:2], ids=str)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_batches_that_do_not_tell_their_size_are_delivered_and_counted(options, make):
    loader = DataLoader(range(4), batch_size=2, collate_fn=make, **options)
    assert len(list(loader)) == loader.stats().batches == 2


def test_a_loader_inside_tells_its_own():
    with MultiLoader(DataPipeline(range(40)).batched(4), workers=1) as loader:
        face = DataLoader(loader, batch_size=None)
        list(face)
        assert face.stats().as_dict() == loader.stats().as_dict()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": None},
        {"batch_size": 3, "collate_fn": tuple},
        {"batch_size": 3, "collate_fn": lambda rows: {"images": rows[0], "number": len(rows)}},
        {"batch_sampler": [[0, 1, 2], [3]]},
    ],
)
def test_samples_are_those_that_the_dataset_was_asked_for(options, workers):
    loader = DataLoader(Images(), num_workers=workers, **options)
    list(loader)
    assert loader.stats().samples == (4 if "batch_sampler" in options else 20)
