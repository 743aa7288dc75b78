"""Stages after a loader that run ahead in a thread: ``prefetch``."""

import itertools
import random
import threading
import time

import numpy as np
import pytest

from mpwds import DataPipeline, MultiLoader
from mpwds.errors import SharedRandomError
from mpwds.stats.collector import WAITED, ConsumerTimer
from tests.forks import raised_in_fork
from tests.loader.jobs import as_json, as_lists

pytestmark = pytest.mark.usefixtures("one_fork_server", "nothing_left")


def numbers(most=120, **options):
    return MultiLoader(DataPipeline(range(most)).batched(3), output="numpy", **{"workers": 2, **options})


def as_list(batch):
    return batch.tolist()


def drawn(batch):
    return [random.random() for _ in batch]


STAGES = {
    "pool": lambda loader: loader.rebatched(4, shuffle=20),
    "map": lambda loader: loader.map(as_list),
    "threads": lambda loader: loader.map(as_list, threads=3),
    "rows": lambda loader: loader.unbatched().map(int).shuffle(9),
}


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("n", [1, 2, 7])
def test_elements_and_states_are_those_without_it(name, n):
    with STAGES[name](numbers()) as loader:
        whole = as_lists(loader)
    with STAGES[name](numbers()).prefetch(n) as first, STAGES[name](numbers()).prefetch(n) as second:
        for stop in (5, 0, 1, len(whole) - 1):
            first.set_epoch(0)
            begun = as_lists(itertools.islice(first, stop))
            second.load_state_dict(as_json(first.state_dict()))
            assert begun + as_lists(second) == whole


def test_elements_are_made_while_the_training_loop_works():
    made = [threading.Event() for _ in range(40)]

    def make(batch):
        made[batch[0] // 3].set()
        return batch

    with numbers(workers=1).map(make).prefetch(2) as loader:
        for step, _ in enumerate(loader):
            assert all(event.wait(60) for event in made[step + 1 : step + 3])
            assert not any(event.is_set() for event in made[step + 3 :])


def test_a_function_that_draws_is_refused_before_it_and_keeps_its_numbers_after_it():
    with numbers().map(drawn).prefetch() as loader:
        with pytest.raises(SharedRandomError, match="in a stage that no thread runs"):
            next(iter(loader))
    found = []
    for add in (lambda loader: loader.map(np.sort), lambda loader: loader.map(np.sort).prefetch()):
        with add(numbers(seed=5)).map(drawn) as loader:
            random.seed(1)
            found.append([(element, random.random()) for element in loader])
    stages, program = ([[part[number] for part in each] for each in found] for number in (0, 1))
    assert program[0] == program[1]  # the training loop's own
    assert [len(element) for element in stages[0]] == [len(element) for element in stages[1]]


def test_an_error_comes_at_its_element_which_comes_again():
    fails = [30]

    def make(batch):
        if batch[0] in fails:
            raise OSError(f"no {fails.pop()}")
        return batch.tolist()

    def loader():
        return numbers(workers=1).map(make).prefetch(3)

    seen = []
    with loader() as begun, pytest.raises(OSError, match="no 30"):
        seen += (batch for batch in begun)
    assert [batch[0] for batch in seen] == list(range(0, 30, 3))
    with loader() as resumed:
        resumed.load_state_dict(begun.state_dict())
        assert [batch[0] for batch in resumed] == list(range(30, 120, 3))


def test_an_epoch_that_is_left_takes_nothing_of_the_next():
    dataset = DataPipeline(range(60)).map(lambda number: (time.sleep(0.002), number)[1]).batched(3)
    with MultiLoader(dataset, workers=2, output="numpy").map(as_list).prefetch(2) as loader:
        for stop in range(8):
            begun = list(itertools.islice(loader, stop))
            assert len(begun) == stop
        assert sorted(itertools.chain(*loader)) == list(range(60))


def test_a_loader_is_closed_while_its_thread_waits_for_a_worker():
    def make(number):
        time.sleep(3600 if number == 9 else 0)
        return number

    loader = MultiLoader(DataPipeline(range(30)).map(make).batched(3), workers=1, output="numpy")
    batches = iter(ahead := loader.map(as_list).prefetch(2))
    assert [next(batches) for _ in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    ahead.close()
    with pytest.raises(RuntimeError, match="the loader was closed"):
        next(batches)


def test_a_fork_is_told_to_iterate_again():
    with numbers().map(as_list).prefetch() as loader:
        batches = iter(loader)
        next(batches)
        assert "iterate the dataset again here" in raised_in_fork(lambda: next(batches))


@pytest.mark.parametrize("n", [0, -1])
def test_at_least_one_element_is_made_ahead(n):
    with pytest.raises(ValueError, match="prefetch: n must be"):
        numbers().map(as_list).prefetch(n)


def test_it_prints_as_it_was_written():
    assert repr(numbers().map(as_list).prefetch(3)).endswith(".map(as_list)\n    .prefetch(3)")


class TestTheClock:
    def test_counts_the_threads_waiting_while_the_program_waits_for_the_stages_alone(self, monkeypatch):
        now = itertools.count(step=10**9)  # a second for each look
        monkeypatch.setattr(time, "monotonic_ns", lambda: next(now))
        timer = ConsumerTimer()
        timer.delivered(1, 1)  # the first batch
        timer.runs_ahead = True
        before = timer.read()
        timer.enter(WAITED)  # in the thread, while the program works
        timer.stages_began()
        timer.stages_ended(1)
        timer.left()  # and has got it
        timer.stages_began()
        timer.stages_ended(1)
        spent = timer.read() - before
        assert spent.waited_s > 0
        assert spent.stages_s > 0
        assert spent.elsewhere_s > spent.waited_s

    def test_counts_nothing_of_a_thread_beside_a_program_that_works(self):
        timer = ConsumerTimer()
        timer.delivered(1, 1)
        timer.runs_ahead = True
        for _ in range(5):
            timer.enter(WAITED)
            timer.delivered(1, 1)
        assert (timer.read().waited_s, timer.read().stages_s, timer.read().batches) == (0, 0, 6)
