"""Warming up: workers that are ready before the first epoch, or an error that says why not."""

import os
import signal
import threading
import time

import pytest

import mpwds
from mpwds import DataPipeline, MultiLoader
from mpwds.loader.launching import forkserver
from tests.loader.faults.processes import wait_until

start_methods = pytest.mark.parametrize(
    "start_method", ["forkserver", "fork", pytest.param("spawn", marks=pytest.mark.slow)]
)


class Arriving:
    """A dataset that leaves a mark where it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __setstate__(self, state):
        self.__dict__ = state
        (self.folder / f"arrived-{os.getpid()}").touch()

    def __iter__(self):
        return iter([7])


class Unpickled:
    """A dataset that calls a function where it is unpickled."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call

    def __iter__(self):
        return iter([1])


SLOW = Unpickled(time.sleep, (30,))


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_workers_have_their_dataset_when_it_returns(start_method, tmp_path):
    with MultiLoader(Arriving(tmp_path), workers=2, start_method=start_method) as loader:
        loader.warm_up()
        assert len(list(tmp_path.iterdir())) == 2
        assert [int(element) for element in loader] == [7, 7]


@start_methods
def test_it_starts_each_worker_once_however_often_it_is_called(start_method):
    with MultiLoader(range(4), workers=2, start_method=start_method) as loader:
        loader.warm_up(wait=False)
        loader.warm_up()
        pids = loader.worker_pids
        loader.warm_up()
        assert [int(element) for element in loader] == [0, 1, 2, 3]
        loader.warm_up()
        assert loader.worker_pids == pids
        assert [int(element) for element in loader] == [0, 1, 2, 3]


def test_in_the_middle_of_an_epoch_it_takes_nothing_away():
    with MultiLoader(range(20), workers=2) as loader:
        iterator = iter(loader)
        loader.warm_up()
        seen = [int(next(iterator))]
        loader.warm_up()
        assert [*seen, *map(int, iterator)] == list(range(20))


def test_without_waiting_it_returns_before_workers_are_ready():
    with MultiLoader(SLOW, workers=1, start_method="spawn") as loader:
        loader.warm_up(wait=False)
        assert len(loader.worker_pids) == 1
        expected = (
            "worker 0 .* was not ready within 0.3 s: raise timeout= if starting and unpickling the dataset"
        )
        with pytest.raises(mpwds.WorkerTimeout, match=expected):
            loader.warm_up(timeout=0.3)
        assert loader.worker_pids == []


@pytest.mark.parametrize(
    ("dataset", "options", "error", "words"),
    [
        (Unpickled(int, ("no number",)), {"workers": 2}, ValueError, "no number"),
        (Unpickled(os._exit, (5,)), {}, mpwds.WorkerDied, "status 5"),
        ([threading.Lock()], {"start_method": "spawn"}, TypeError, "be sent"),
    ],
    ids=["a dataset that cannot be unpickled", "a worker that dies", "a dataset that cannot be sent"],
)
def test_what_keeps_workers_from_being_ready_is_told_each_time(dataset, options, error, words):
    with MultiLoader(dataset, **{"workers": 1, **options}) as loader:
        for _ in range(2):
            with pytest.raises(error, match=words) as raised:
                loader.warm_up()
            assert error is not ValueError or "in worker 0" in str(raised.value.__cause__)
            assert loader.worker_pids == []


def test_a_worker_that_is_killed_meanwhile_is_told():
    with MultiLoader(SLOW, workers=1, start_method="spawn") as loader:
        loader.warm_up(wait=False)
        os.kill(loader.worker_pids[0], signal.SIGKILL)
        with pytest.raises(mpwds.WorkerDied, match="SIGKILL"):
            loader.warm_up()


def test_a_loader_without_workers_has_nothing_to_warm_up():
    loader = MultiLoader(range(3), workers=0)
    loader.warm_up()
    assert [int(element) for element in loader] == [0, 1, 2]


@pytest.mark.parametrize("timeout", [10**9, float("inf")])
def test_a_timeout_may_be_longer_than_what_the_system_can_wait_at_once(timeout):
    with MultiLoader(range(3), workers=1) as loader:
        loader.warm_up(timeout=timeout)
        assert len(loader.worker_pids) == 1


@pytest.mark.parametrize("timeout", [0, -1.0])
def test_a_timeout_that_is_none_is_an_error(timeout):
    with pytest.raises(ValueError, match="warm_up: timeout"):
        MultiLoader(range(3)).warm_up(timeout=timeout)


def test_what_is_behind_a_loader_warms_it_up():
    with MultiLoader(DataPipeline(range(8)).batched(2), workers=2).unbatched() as pipeline:
        pipeline.warm_up()
        assert len(pipeline.loader.worker_pids) == 2
        assert sorted(map(int, pipeline)) == list(range(8))


def test_warming_up_again_and_again_starts_the_workers_once_their_modules_are_imported():
    forkserver.let_go()
    with MultiLoader(DataPipeline(range(3)), workers=1, output="numpy") as loader:

        def start():
            loader.warm_up(wait=False)
            return loader.worker_pids

        wait_until(start, "the workers to start")
        assert list(loader) == [0, 1, 2]
