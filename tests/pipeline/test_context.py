import pytest
import torch.utils.data

from mpwds.pipeline.context import Context


def test_a_process_alone_is_rank_and_worker_zero_of_one():
    assert Context.current(epoch=4) == Context(epoch=4)


def test_the_environment_tells_rank_and_worker(monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "3", "WORKER": "2", "NUM_WORKERS": "4"}.items():
        monkeypatch.setenv(name, value)
    assert Context.current() == Context(rank=1, world_size=3, worker=2, workers=4)


def test_a_variable_that_is_no_number_is_an_error_that_names_it(monkeypatch):
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="RANK is 'first', expected an integer"):
        Context.current()


class Where(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield Context.current()


def test_a_dataloader_worker_is_known_and_its_process_is_the_pipelines_own():
    loader = torch.utils.data.DataLoader(Where(), batch_size=None, num_workers=2)
    assert list(loader) == [Context(worker=worker, workers=2, owns_process=True) for worker in (0, 1)]
