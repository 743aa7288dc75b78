"""Workers that die on their server are started again there: every batch comes once, in the same order."""

import random

import pytest

import mpwds
from tests.feed.faults.checking import Rows, kill_worker, rows, undisturbed, warned
from tests.feed.serving import ServerProcess, delivered


def test_workers_that_kill_themselves_lose_and_repeat_nothing(tmp_path, memory):
    dice = random.Random(7)
    deaths = {number: dice.choice([1, 2]) for number in dice.sample(range(240), 4)}
    dataset = rows(deaths=deaths, folder=tmp_path)
    with ServerProcess(dataset, workers=2) as server:
        with mpwds.RemoteLoader(server.url, output="numpy", **memory) as loader, warned() as texts:
            assert delivered(loader) == undisturbed(2)[0]
            total = sum(deaths.values())
            assert len(list(tmp_path.iterdir())) == total
            assert loader.stats().restarts == total
    assert len(texts) == total
    assert all("was killed by SIGKILL" in text and "no batch is lost" in text for text in texts)
    assert len(set(texts)) == total


class CountedRows(Rows):
    """Notes each row that is made."""

    def __call__(self, number):
        with open(f"{self.folder}/made", "a") as file:
            file.write(".")
        return super().__call__(number)


def test_a_worker_that_dies_late_in_an_epoch_does_not_make_its_begin_again(tmp_path):
    late = CountedRows(deaths={230: 2}, folder=tmp_path)
    dataset = mpwds.DataPipeline(range(240), seed=3).map(late).batched(4)
    with ServerProcess(dataset, workers=1) as server:
        with mpwds.RemoteLoader(server.url, output="numpy") as loader, warned() as texts:
            assert len(delivered(loader)) == 60
    assert len(texts) == 2
    assert (tmp_path / "made").stat().st_size < 240 + 2 * 60


@pytest.mark.slow
def test_a_worker_that_died_between_epochs_is_there_in_the_next(memory):
    with ServerProcess(rows(), workers=2) as server:
        with mpwds.RemoteLoader(server.url, output="numpy", **memory) as loader, warned() as texts:
            first, second = undisturbed(2, epochs=2)
            assert delivered(loader) == first
            for number in range(2):
                kill_worker(server, number)
            assert delivered(loader) == second
    assert len(texts) == 2


def test_a_sample_that_kills_its_worker_each_time_is_an_error(tmp_path, memory):
    unlucky = rows(deaths={100: 99}, folder=tmp_path)
    with ServerProcess(unlucky, workers=2) as server:
        with mpwds.RemoteLoader(server.url, output="numpy", **memory) as loader, warned():
            with pytest.raises(
                mpwds.WorkerDied, match=r"worker \d .*SIGKILL.*died 3 times in a row before batch"
            ) as caught:
                delivered(loader)
            assert caught.value.worker in (0, 1)
            assert len(list(tmp_path.iterdir())) == 3
