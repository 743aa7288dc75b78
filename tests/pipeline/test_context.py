import pytest
import torch.distributed
import torch.utils.data
import webdataset.utils

from mpwds.pipeline.context import Context, pytorch_worker_info, pytorch_worker_seed


def test_a_process_alone_is_rank_and_worker_zero_of_one():
    assert Context.current(epoch=4) == Context(epoch=4)


class Where(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield Context.current()


def test_a_dataloader_worker_is_known_and_its_process_is_the_pipelines_own():
    loader = torch.utils.data.DataLoader(Where(), batch_size=None, num_workers=2)
    found = list(loader)
    [run] = {context.run for context in found}
    assert found == [Context(worker=worker, workers=2, owns_process=True, run=run) for worker in (0, 1)]
    assert {context.run for context in loader} != {run}


def test_splitters_of_ones_own_learn_their_place_as_from_webdataset(monkeypatch):
    assert pytorch_worker_info() == webdataset.utils.pytorch_worker_info() == (0, 1, 0, 1)
    for name, value in {"RANK": "2", "WORLD_SIZE": "3", "WORKER": "5", "NUM_WORKERS": "7"}.items():
        monkeypatch.setenv(name, value)
    assert Context.current() == Context(rank=2, world_size=3, worker=5, workers=7)
    assert pytorch_worker_info() == webdataset.utils.pytorch_worker_info() == (2, 3, 5, 7)
    assert pytorch_worker_seed() == webdataset.utils.pytorch_worker_seed() == 2005


@pytest.mark.parametrize("rank", ["2", "-1"])
def test_a_rank_that_no_rank_of_the_job_has_is_an_error(monkeypatch, rank):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        ValueError, match=f"RANK={rank} and WORLD_SIZE=2 in the environment: RANK is 0 to WORLD_SIZE - 1"
    ):
        Context.current()


def test_of_a_group_of_ranks_both_the_rank_in_it_and_its_size_count(monkeypatch):
    sizes = {None: (5, 8), "half": (1, 4)}
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group=None: sizes[group][0])
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: sizes[group][1])
    assert pytorch_worker_info() == (5, 8, 0, 1)
    for name, value in {"RANK": "2", "WORLD_SIZE": "3", "WORKER": "1", "NUM_WORKERS": "2"}.items():
        monkeypatch.setenv(name, value)
    assert pytorch_worker_info("half") == (1, 4, 1, 2)


def test_what_is_alike_on_workers_or_ranks_knows_neither():
    context = Context(epoch=3, rank=1, world_size=2, worker=4, workers=5, run=6)
    assert context.alike_on_workers() == Context(epoch=3, rank=1, world_size=2, run=6)
    assert context.alike_on_ranks() == Context(epoch=3)
    assert Context(worker=4, workers=5, run=6).alike_on_ranks() == Context(run=6)
    assert (context.moment, Context(epoch=3).moment) == ((3, 6), 3)
