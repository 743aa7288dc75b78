"""Workers that die are started again: every batch comes once, in the order in which it would have come."""

import contextlib
import os
import random
import select
import signal
import threading
import warnings

import numpy as np
import pytest

from mpwds import DataPipeline, MultiLoader, WebDataset
from mpwds.errors import WorkerDied
from mpwds.loader import even
from mpwds.loader.worker import elements
from tests.loader.ranks.simulated_ranks import AlikeRanks

pytestmark = pytest.mark.filterwarnings("ignore:.*A new process")

LARGE = 5000
"""Numbers in an element that takes a block of shared memory."""


def numbers(count, size=1, state=True):
    dataset = (
        DataPipeline(range(count)).shuffle(10).map(lambda number: np.full(size, number + np.random.random()))
    )
    return dataset if state else dataset.compose(lambda source: source)


def values(loader, at=None):
    """The epoch's first values; ``at(number)`` is called between two."""
    got = []
    for element in loader:
        got.append(float(element[0]))
        if at is not None:
            at(len(got))
    return got


@pytest.fixture(autouse=True)
def _states_everywhere(monkeypatch):
    """Workers that are forks send their state often, not with every batch."""
    monkeypatch.setattr(elements, "STATE_EVERY_S", 0.002)
    monkeypatch.setattr(elements, "STATE_SHARE", float("inf"))


def loader_of(dataset, **options):
    usual = {"workers": 2, "start_method": "fork", "output": "numpy", "on_worker_death": "restart"}
    return MultiLoader(dataset, **{**usual, **options})


def kill(pid):
    """Kills a worker and waits for its end. The fork server may reap it, and free its pid, at any moment."""
    watched = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([watched], [], [])
    os.close(watched)


def kill_if_there(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("size", [1, LARGE])
@pytest.mark.parametrize("state", [True, False])
def test_workers_killed_at_random_moments_lose_and_repeat_nothing(in_order, size, state):
    dataset = numbers(300, size, state)
    with loader_of(dataset, in_order=in_order) as undisturbed:
        expected = values(undisturbed)
    dice = random.Random(f"{in_order}{size}{state}")
    moments = sorted(dice.sample(range(1, 300), 5))
    with loader_of(dataset, in_order=in_order) as loader:
        killers = []

        def disturb(number):
            if number in moments:
                pid = dice.choice(loader.worker_pids)
                killers.append(threading.Timer(dice.random() * 0.01, kill_if_there, (pid,)))
                killers[-1].start()

        got = values(loader, disturb)
        for killer in killers:
            killer.join()
    assert (got if in_order else sorted(got)) == (expected if in_order else sorted(expected))


def test_a_warning_says_who_died_of_what_and_where(shards):
    dataset = WebDataset(shards).decode().to_tuple("npy").map_tuple(lambda array: np.tile(array, (1000, 1)))
    dataset = dataset.batched(2)
    with loader_of(dataset, workers=1, prefetch=1) as loader, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        batches = iter(loader)
        next(batches)
        pid = loader.worker_pids[0]
        kill(pid)
        assert sum(1 for _ in batches) == 19
        assert loader.stats().restarts == 1
        assert loader.worker_pids != [pid]
    (warning,) = caught
    assert warning.filename == __file__
    text = str(warning.message)
    assert f"worker 0 (pid {pid}) was killed by SIGKILL" in text
    assert "train-" in text
    assert "took its place: no batch is lost or delivered twice and the order is unchanged" in text


def test_batches_of_the_dead_worker_that_are_held_stay_as_they_are():
    with loader_of(numbers(400, LARGE), workers=1, prefetch=40) as loader:
        batches = iter(loader)
        held = [next(batches) for _ in range(3)]
        before = [batch.copy() for batch in held]
        kill(loader.worker_pids[0])
        with pytest.warns(RuntimeWarning, match="A new process"):
            rest = list(batches)
        assert all((now == then).all() for now, then in zip(held, before, strict=True))
        assert len(rest) == 397


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_workers_are_started_again_by_other_methods_too(start_method):
    dataset = numbers(60, LARGE)
    with loader_of(dataset, start_method=start_method) as loader:
        expected = values(loader)
        loader.set_epoch(0)

        def disturb(number):
            if number == 20:
                kill(loader.worker_pids[0])
            if number == 40:
                kill(loader.worker_pids[1])

        assert values(loader, disturb) == expected


def test_a_worker_that_died_between_epochs_is_there_in_the_next():
    with loader_of(numbers(30)) as loader:
        first = values(loader)
        for pid in loader.worker_pids:
            kill(pid)
        second = values(loader)
        loader.set_epoch(0)
        assert values(loader) == first
    assert sorted(map(int, second)) == list(range(30))


def kills_itself(path):
    """A dataset whose 12th element kills its worker, as long as there is a file to count the deaths in."""

    def element(number):
        if number == 12:
            with open(path, "a") as deaths:
                deaths.write("x")
            if os.path.getsize(path) <= 2 or path.endswith("always"):
                os.kill(os.getpid(), signal.SIGKILL)
        return np.full(LARGE, number)

    return DataPipeline(range(20)).map(element)


def test_a_sample_that_kills_its_worker_twice_is_delivered_the_third_time(tmp_path):
    with loader_of(kills_itself(str(tmp_path / "twice"))) as loader:
        assert values(loader) == list(range(20))
        assert [worker.restarts for worker in loader.stats().workers] == [2, 0]


def test_a_sample_that_kills_its_worker_each_time_is_an_error(tmp_path):
    got = []
    with loader_of(kills_itself(str(tmp_path / "always"))) as loader:
        with pytest.raises(WorkerDied, match=r"SIGKILL.*It died 3 times in a row before batch 6") as caught:
            for element in loader:
                got.append(int(element[0]))
        assert caught.value.exitcode == -signal.SIGKILL
        assert loader.worker_pids == []
    assert got == list(range(12))
    assert os.path.getsize(tmp_path / "always") == 3


def test_a_state_that_was_loaded_is_what_a_dead_worker_begins_from_too():
    dataset = numbers(60, LARGE)
    with loader_of(dataset) as loader:
        expected = values(loader)
        loader.set_epoch(0)
        batches = iter(loader)
        first = [float(next(batches)[0]) for _ in range(25)]
        loader.load_state_dict(loader.state_dict())
        batches = iter(loader)
        for pid in loader.worker_pids:
            kill(pid)
        assert first + [float(batch[0]) for batch in batches] == expected


def test_stages_behind_the_loader_see_nothing_of_it():
    dataset = numbers(60, LARGE).batched(3)
    with loader_of(dataset) as loader:
        pipeline = loader.rebatched(4, shuffle=20)
        expected = [batch[:, 0].tolist() for batch in pipeline]
        loader.set_epoch(0)
        got = []
        for batch in pipeline:
            got.append(batch[:, 0].tolist())
            if len(got) in (2, 5):
                kill(loader.worker_pids[len(got) % 2])
        assert got == expected


def test_batches_that_were_taken_ahead_of_the_program_are_not_made_again(at_rank, monkeypatch):
    at_rank(0, 2)
    monkeypatch.setattr(even, "TorchRanks", AlikeRanks)
    dataset = numbers(120, LARGE).select(lambda array: True)  # so nobody knows how many there are
    with loader_of(dataset, even="drop") as loader:
        expected = values(loader)
        loader.set_epoch(0)

        def disturb(number):
            if number in (1, 20):
                kill(loader.worker_pids[number % 2])

        assert values(loader, disturb) == expected


def test_statistics_count_what_the_dead_worker_did():
    with loader_of(numbers(60, LARGE)) as loader:
        values(loader, lambda number: kill(loader.worker_pids[0]) if number in (20, 40) else None)
        stats = loader.stats()
    assert [worker.restarts for worker in stats.workers] == [2, 0]
    assert stats.batches == 60
    # A worker may die between counting a batch and sending it.
    assert 58 <= sum(worker.batches for worker in stats.workers) <= 62
