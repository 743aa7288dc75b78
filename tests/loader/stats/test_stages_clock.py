"""The clock of the stages behind a loader: what it times, and that it changes nothing."""

import time

import pytest

from mpwds import DataPipeline, MultiLoader
from mpwds.loader.stats.stages_clock import clocked
from mpwds.loader.stats.trainer_times import TrainerTimes

pytestmark = pytest.mark.usefixtures("quick_workers")


class Weights(TrainerTimes):
    """Notes how many elements each that is timed stands for."""

    def __init__(self):
        super().__init__()
        self.noted = []

    def stages_ended(self, weight):
        super().stages_ended(weight)
        self.noted.append(weight)


@pytest.mark.parametrize("count", [0, 1, 5, 20_000])
def test_the_elements_are_the_same(count):
    assert list(clocked(iter(range(count)), TrainerTimes)) == list(range(count))


def test_of_small_elements_some_are_timed_and_stand_for_all():
    weights = Weights()
    assert sum(1 for _ in clocked(iter(range(200_000)), lambda: weights)) == 200_000
    assert len(weights.noted) < 100_000
    assert sum(weights.noted) == pytest.approx(200_000, rel=0.5)


def test_an_error_of_a_stage_passes_through():
    def failing():
        yield 1
        raise ZeroDivisionError

    elements = clocked(failing(), TrainerTimes)
    assert next(elements) == 1
    with pytest.raises(ZeroDivisionError):
        next(elements)


def pause(batch):
    time.sleep(0.005)
    return batch


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


def test_many_small_elements_of_a_stage_are_estimated_and_the_times_add_up():
    dataset = DataPipeline(range(20_000)).batched(100)
    with MultiLoader(dataset, workers=1, output="numpy").unbatched() as pipeline:
        began = time.monotonic()
        assert sum(1 for _ in pipeline) == 20_000
        took_s = time.monotonic() - began
        stats = pipeline.stats()
    assert stats.stages_s > 0
    assert stats.seconds <= took_s
