"""Calls that overlap in threads of a worker, and of the trainer behind a loader."""

import os
import random
import signal
import threading

import pytest

from mpwds import DataPipeline, MultiLoader

pytestmark = pytest.mark.usefixtures("quick_workers", "nothing_left")


def dataset(in_order=True, die_at=None, flag=""):
    def call(n):
        if n == die_at and not os.path.exists(flag):
            open(flag, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    drawn = DataPipeline(range(60)).map(lambda n: n + random.random() / 2)
    return drawn.map(int).map(call, threads=4, in_order=in_order)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_goes_on_from_its_state_exactly(in_order, workers):
    with MultiLoader(dataset(in_order), workers=workers, output="numpy") as loader:
        epoch = iter(loader)
        seen = [int(next(epoch)) for _ in range(23)]
        state = loader.state_dict()
    with MultiLoader(dataset(in_order), workers=workers, output="numpy") as loader:
        loader.load_state_dict(state)
        seen += map(int, loader)
    assert (sorted(seen), seen if in_order and not workers else sorted(seen)) == (list(range(60)),) * 2


@pytest.mark.parametrize("in_order", [True, False])
def test_no_element_is_lost_or_repeated_when_a_worker_is_killed(in_order, tmp_path):
    killed = dataset(in_order, 40, str(tmp_path / "flag"))
    with MultiLoader(killed, workers=2, output="numpy", on_worker_death="restart") as loader:
        with pytest.warns(match="took its place"):
            seen = [int(n) for n in loader]
    assert sorted(seen) == list(range(60))
    assert in_order is False or seen == list(range(60))


def test_calls_overlap_with_the_step_of_the_trainer():
    called = [threading.Event() for _ in range(10)]

    def f(n):
        called[n].set()
        return int(n)

    with MultiLoader(range(10), workers=1, output="numpy").map(f, threads=3) as loader:
        for n in loader:
            for ahead in called[n + 1 : n + 3] if n else ():
                assert ahead.wait(600)


def test_batches_of_workers_in_any_order_are_not_made_again():
    def made():
        return MultiLoader(dataset(in_order=False), workers=1, output="numpy").shuffle(20)

    with made() as loader:
        epoch = iter(loader)
        next(epoch)
        state = loader.state_dict()
    with made() as loader:
        loader.load_state_dict(state)
        with pytest.raises(ValueError, match="this epoch cannot be continued"):
            next(iter(loader))
