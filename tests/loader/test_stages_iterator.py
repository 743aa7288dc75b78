"""Iterating stages behind a loader: for one thread at a time, and timed."""

import threading
import time

import pytest

from mpwds import DataPipeline, MultiLoader
from mpwds.loader.stages import StagesIterator
from mpwds.stats.collector import ConsumerTimer


class Weights(ConsumerTimer):
    """Notes how many elements each that is timed stands for."""

    def __init__(self):
        super().__init__()
        self.noted = []

    def stages_ended(self, weight):
        super().stages_ended(weight)
        self.noted.append(weight)


def test_of_small_elements_some_are_timed_and_stand_for_all():
    weights = Weights()
    assert sum(1 for _ in StagesIterator(iter(range(200_000)), lambda: weights)) == 200_000
    assert len(weights.noted) < 100_000
    assert sum(weights.noted) == pytest.approx(200_000, rel=0.5)


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("of a stage"), ValueError("generator already executing")]
)
def test_an_error_of_a_stage_passes_through_as_what_it_is(error):
    def failing():
        yield 1
        raise error

    elements = StagesIterator(failing(), ConsumerTimer)
    assert next(elements) == 1
    with pytest.raises(type(error), match=str(error)):
        next(elements)


def pause(batch):
    time.sleep(0.005)
    return batch


@pytest.mark.usefixtures("clock_of_sleeps")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loaders_stats_tell_the_stages_behind_it_from_the_training_step(workers):
    dataset = DataPipeline(range(40)).batched(2)
    with MultiLoader(dataset, workers=workers, output="numpy").map(pause) as pipeline:
        for _ in pipeline:
            time.sleep(0.001)
        stats = pipeline.stats()
        assert stats.stages_s >= 19 * 0.005
        assert stats.elsewhere_s >= 19 * 0.001
        assert stats.stages_s > stats.elsewhere_s
        assert "is in stages" in str(stats)
        for _ in pipeline.loader:
            time.sleep(0.001)
        assert pipeline.stats().stages_s == 0


@pytest.mark.usefixtures("clock_of_sleeps")
@pytest.mark.parametrize("taken", [10, 20])
@pytest.mark.parametrize("workers", [0, 1])
def test_the_time_goes_on_while_stages_deliver_what_they_hold_of_the_last_batches(workers, taken):
    dataset = DataPipeline(range(20))
    with MultiLoader(dataset, workers=workers, output="numpy").shuffle(20, initial=20).map(pause) as pipeline:
        elements = iter(pipeline)
        for _ in range(taken):
            next(elements)
            time.sleep(0.01)
        next(elements, None)
        del elements
        time.sleep(1)
        stats = pipeline.stats()
    assert stats.batches == 20
    assert stats.elsewhere_s == pytest.approx(taken * 0.01)
    assert stats.stages_s >= taken * 0.005


def test_many_small_elements_of_a_stage_are_estimated_and_the_times_add_up():
    dataset = DataPipeline(range(20_000)).batched(100)
    with MultiLoader(dataset, workers=1, output="numpy").unbatched() as pipeline:
        began = time.monotonic()
        assert sum(1 for _ in pipeline) == 20_000
        took_s = time.monotonic() - began
        stats = pipeline.stats()
    assert stats.stages_s > 0
    assert stats.seconds <= took_s


NUMBERS = [0, 1, 2, 3]


class Gate:
    """A function of an element that stays in the second one until it is let go on."""

    def __init__(self):
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, number):
        if number == 1:
            self.entered.set()
            self.opened.wait()
        return number

    def numbers(self):
        return map(self, NUMBERS)


ITERATIONS = {
    "without workers": lambda gate: MultiLoader(gate.numbers, workers=0, output="numpy"),
    "stages without workers": lambda gate: MultiLoader(NUMBERS, workers=0, output="numpy").map(gate),
    "stages": lambda gate: MultiLoader(NUMBERS, workers=1, output="numpy").map(gate),
}


@pytest.mark.parametrize("kind", list(ITERATIONS))
def test_the_thread_that_comes_second_is_told_and_the_first_gets_all_elements(kind):
    gate = Gate()
    received = []
    with ITERATIONS[kind](gate) as loader:
        iterator = iter(loader)
        first = threading.Thread(target=lambda: received.extend(iterator))
        first.start()
        gate.entered.wait()
        with pytest.raises(RuntimeError, match="another thread is in the middle of next.. of this iteration"):
            next(iterator)
        gate.opened.set()
        first.join()
        state = loader.state_dict()
    assert received == NUMBERS
    assert state["epoch"] == 1


def test_an_iteration_that_was_closed_is_at_its_end():
    elements = StagesIterator((number for number in NUMBERS), ConsumerTimer)
    assert next(elements) == 0
    elements.close()
    assert list(elements) == []
