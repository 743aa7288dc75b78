"""Counting and timing a pipeline's stages: what it adds to, and what it must not change."""

import gc
import itertools
import threading
import time
import traceback
import weakref

import pytest

from mpwds import DataPipeline
from mpwds.pipeline.context import Context
from mpwds.pipeline.filter import rows_in
from mpwds.pipeline.stages.shuffle import Shuffle
from mpwds.pipeline.stream import Source
from mpwds.stats.counters import Counters
from mpwds.stats.profiler import StageProfiler


def pipeline():
    return DataPipeline(range(30)).shuffle(7).map(str).batched(4, collation_fn=None)


def watched(dataset, page=None):
    """The stream of a pipeline that a meter watches, and the meter."""
    meter = StageProfiler(page or Counters(), dataset.samples_in, counts_cpu=False)
    return dataset.stream(Context(watch=meter.watch)), meter


def test_a_watched_pipeline_gives_the_same_and_is_continued_from_its_state():
    first, _ = watched(pipeline())
    seen = [next(first) for _ in range(3)]
    second, meter = watched(pipeline())
    second.load_state_dict(first.state_dict())
    with meter.epoch():
        assert seen + list(meter.elements(second)) == list(pipeline().stream())


def test_a_watched_pipeline_makes_elements_again_and_describes_them():
    stream, _ = watched(pipeline())
    address, batch = next(stream)
    assert stream.fetch(address) == batch
    assert "element" in str(stream.describe(address))


def test_a_stream_is_freed_when_it_is_dropped():
    class Elements(Source):
        pass

    class Origin:
        def stream(self, context):
            return Elements([1, 2])

        def __str__(self):
            return "origin"

    stream, _meter = watched(DataPipeline(Origin()).map(str))
    next(stream)
    alive = [weakref.ref(each) for each in gc.get_objects() if type(each) is Elements]
    assert len(alive) == 1
    gc.disable()
    try:
        del stream
        assert alive[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("timed", [False, True])
def test_an_error_passes_through_is_not_counted_and_names_the_stage_in_its_traceback(timed):
    page = Counters()
    stream, meter = watched(DataPipeline(["one", "2"]).map(int), page)
    with meter.epoch():
        if timed:
            meter.making()
        with pytest.raises(ValueError, match="one") as caught:
            next(stream)
        assert next(stream)[1] == 2
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(stream)
    assert "in stage map(int)" in "".join(traceback.format_tb(caught.tb))
    assert [stage.elements for stage in page.read().stages.values()] == [2, 1]


def test_a_stream_that_is_made_while_a_batch_is_timed_is_timed():
    page = Counters()
    dataset = DataPipeline(range(3)).map(lambda _: time.sleep(0.001))
    meter = StageProfiler(page, dataset.samples_in, counts_cpu=False)
    with meter.epoch():
        meter.making()
        list(dataset.stream(Context(watch=meter.watch)))
    assert page.read().stages["map(<lambda>)"].time_ns >= 3_000_000


def test_what_a_stage_does_in_other_threads_is_counted_and_not_timed():
    page = Counters()
    stream, meter = watched(DataPipeline([0.001] * 10).map(time.sleep).map(str), page)
    with meter.epoch():
        meter.making()
        thread = threading.Thread(target=lambda: list(stream))
        thread.start()
        thread.join()
    slept = page.read().stages["map(sleep)"]
    assert (slept.elements, slept.time_ns) == (0, 0)  # map() leaves out None
    assert page.read().stages["list"].elements == 10
    assert page.read().other.time_ns >= 10_000_000


def test_a_shuffle_is_told_from_its_source():
    page = Counters()
    dataset = DataPipeline(range(20)).map(str).compose(Shuffle(5))
    stream, meter = watched(dataset, page)
    with meter.epoch():
        assert len(list(meter.elements(iter(stream)))) == 20
    assert list(page.read().stages) == ["range", "map(str)", "shuffle(5)"]


def test_of_small_batches_only_some_are_timed_and_each_stands_for_those_before_it(monkeypatch):
    looks = itertools.count(0, 1000)
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(looks))  # each interval takes 1 us
    page = Counters()
    stream, meter = watched(DataPipeline(range(10_000)), page)
    timed = 0
    with meter.epoch():
        for _ in meter.elements(iter(stream)):
            timed += meter.timing
    reading = page.read()
    assert 100 < timed < 400
    assert reading.stages["range"].elements == 10_000
    assert reading.stages["range"].time_ns == pytest.approx(10_000 * 1000, rel=0.02)
    assert reading.writing.time_ns == pytest.approx(10_000 * 1000, rel=0.02)


def test_waiting_for_the_trainer_is_no_part_of_the_writing_of_a_batch(monkeypatch):
    now_ns = 0
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    page = Counters()
    meter = StageProfiler(page, rows_in, counts_cpu=False)
    with meter.epoch():
        meter.making()
        meter.made()
        now_ns += 3
        with meter.waiting():
            now_ns += 1000
        now_ns += 4
    reading = page.read()
    assert (reading.writing.time_ns, reading.waiting_ns, reading.active_ns) == (7, 1000, 1007)


def test_of_large_batches_all_are_timed():
    stream, meter = watched(DataPipeline([0.01] * 20).map(lambda seconds: time.sleep(seconds) or 1))
    with meter.epoch():
        assert all(meter.timing for _ in meter.elements(iter(stream)))


def test_the_first_batch_of_each_epoch_is_timed():
    dataset = DataPipeline(range(2_000)).shuffle(1000, initial=1000)
    meter = StageProfiler(Counters(), dataset.samples_in, counts_cpu=False)
    for _ in range(3):
        with meter.epoch():
            next(meter.elements(iter(dataset.stream(Context(watch=meter.watch)))))
            assert meter.timing
