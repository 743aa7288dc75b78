"""Timing stages from outside: what it adds to, and what it must not change."""

import gc
import threading
import weakref

import pytest

from mpwds import DataPipeline
from mpwds.loader.counters import Counters
from mpwds.loader.meter import Meter
from mpwds.loader.stage_timer import StageTimer
from mpwds.pipeline.context import Context
from mpwds.pipeline.stages.map import Map
from mpwds.pipeline.stages.shuffle import Shuffle
from mpwds.pipeline.stream import Source


def pipeline():
    return DataPipeline(range(30)).shuffle(7).map(str).batched(4, collation_fn=None)


def watched(dataset, page=None):
    """The stream of a pipeline that a meter watches, and the meter."""
    meter = Meter(page or Counters(), dataset, counts_cpu=False)
    return dataset.stream(Context(watch=meter.watch)), meter


def test_a_watched_pipeline_gives_the_same():
    stream, _ = watched(pipeline())
    assert list(stream) == list(pipeline().stream())


def test_a_watched_pipeline_is_continued_from_its_state():
    first, _ = watched(pipeline())
    seen = [next(first) for _ in range(3)]
    second, _ = watched(pipeline())
    second.load_state_dict(first.state_dict())
    assert seen + list(second) == list(pipeline().stream())


def test_a_watched_pipeline_makes_elements_again_and_describes_them():
    stream, _ = watched(pipeline())
    address, batch = next(stream)
    assert stream.fetch(address) == batch
    assert "element" in str(stream.describe(address))


def test_a_stream_is_freed_when_it_is_dropped():
    class Origin:
        def stream(self, context):
            return Elements([1, 2])

        def __str__(self):
            return "origin"

    class Elements(Source):
        pass

    dataset = DataPipeline(Origin()).map(str)
    stream, _meter = watched(dataset)
    next(stream)
    alive = [weakref.ref(each) for each in gc.get_objects() if type(each) is Elements]
    assert len(alive) == 1
    gc.disable()
    try:
        del stream
        assert alive[0]() is None
    finally:
        gc.enable()


def test_only_what_comes_out_while_it_runs_is_timed_but_all_of_it_is_counted():
    timer = StageTimer()
    source, mapped = timer.add_stage(), timer.add_stage()
    stream = timer.between(Source(range(10)), source)
    stream = timer.between(Map(str).stream(stream), mapped)
    next(stream)
    timer.start(timer.add_stage())
    next(stream)
    next(stream)
    timer.stop()
    next(stream)
    assert timer.timed == [2, 2, 0]
    assert timer.elements == [4, 4, 0]
    assert all(nanoseconds > 0 for nanoseconds in timer.time_ns)


def test_a_stream_that_is_made_while_it_runs_is_timed():
    timer = StageTimer()
    stage = timer.add_stage()
    timer.start(stage)
    next(timer.between(Source("a"), stage))
    assert timer.timed == [1]


def test_an_error_passes_through():
    timer = StageTimer()
    stream = timer.between(Map(int).stream(Source(["one", "2"])), timer.add_stage())
    timer.start(timer.add_stage())
    with pytest.raises(ValueError, match="one"):
        next(stream)
    assert next(stream)[1] == 2
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(stream)
    assert timer.timed == timer.elements == [1, 0]


def test_other_threads_pass_untimed():
    timer = StageTimer()
    stream = timer.between(Source(range(10)), timer.add_stage())
    timer.start(timer.add_stage())
    thread = threading.Thread(target=lambda: [next(stream) for _ in range(5)])
    thread.start()
    thread.join()
    next(stream)
    assert timer.timed == [1, 0]
    assert timer.elements == [6, 0]


def test_a_shuffle_is_told_from_what_it_draws_on():
    page = Counters()
    dataset = DataPipeline(range(20)).map(str).compose(Shuffle(5))
    stream, meter = watched(dataset, page)
    with meter.epoch():
        assert len(list(meter.elements(iter(stream)))) == 20
    assert list(page.read().stages) == ["range", "map(str)", "shuffle(5)"]


def test_of_small_elements_only_some_are_timed():
    page = Counters()
    stream, meter = watched(DataPipeline(range(100_000)), page)
    timed = []
    with meter.epoch():
        for _ in meter.elements(iter(stream)):
            timed.append(meter._timer.running)
    assert 1 < sum(timed) < 50_000
    assert page.read().stages["range"].timed == pytest.approx(100_000, rel=0.5)
    assert page.read().stages["range"].elements == 100_000


def test_the_first_element_of_each_epoch_is_timed():
    page = Counters()
    dataset = DataPipeline(range(2_000)).shuffle(1000, initial=1000)
    stream, meter = watched(dataset, page)
    for epoch in range(1, 4):
        with meter.epoch():
            next(meter.elements(iter(stream)))
        assert page.read().writing.timed == epoch
        stream = dataset.stream(Context(watch=meter.watch))
