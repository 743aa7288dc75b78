"""Calls that overlap in threads, or as coroutines: ``map(f, threads=16)``."""

import asyncio
import functools
import gc
import json
import random
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpwds
from mpwds.errors import QuarantineFull, SharedRandomError
from mpwds.pipeline.context import Context
from mpwds.pipeline.stages.map import Map
from mpwds.pipeline.stream import Source, collect
from tests.forks import raised_in_fork

PATIENCE_S = 60


def ahead_threads():
    return {thread for thread in threading.enumerate() if thread.name == "mpwds ahead"}


@pytest.fixture(autouse=True)
def _threads_end():
    before = ahead_threads()
    yield
    gc.collect()
    for thread in ahead_threads() - before:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def meeting(parties):
    """A function that returns only when it is called ``parties`` times at once; the first call is alone."""
    barrier = threading.Barrier(parties)

    def meet(element):
        if element:
            barrier.wait(PATIENCE_S)
        return element

    return meet


def async_meeting(parties):
    waiting = []

    async def meet(element):
        if element:
            waiting.append(element)
            while len(waiting) % parties:
                await asyncio.sleep(0)
        return element

    return meet


class CallableObject:
    def __init__(self, parties):
        self.meet = async_meeting(parties)

    async def __call__(self, element):
        return await self.meet(element)


@pytest.mark.parametrize("make", [meeting, async_meeting, CallableObject])
@pytest.mark.parametrize("in_order", [True, False])
def test_as_many_calls_overlap_as_there_are_threads(make, in_order):
    made = collect(Map(make(4), threads=4, in_order=in_order), range(13))
    assert (sorted(made), made if in_order else sorted(made)) == (list(range(13)), list(range(13)))


@pytest.mark.parametrize(
    "add",
    [
        lambda dataset, f: dataset.select(f),
        lambda dataset, f: dataset.map_tuple(None, f, threads=3),
        lambda dataset, f: dataset.map_dict(x=f),
        lambda dataset, f: dataset.flatmap(f),
        lambda dataset, f: dataset.decode(("x", f)),
        lambda dataset, f: dataset.decode(f),
    ],
)
def test_map_alone_takes_an_async_function(add):
    async def f(element):
        return element

    with pytest.raises(TypeError, match="is an async function, which map.f. alone awaits"):
        add(mpwds.DataPipeline([{"x": b""}]), f)


def test_a_coroutine_that_nobody_awaits_is_an_error():
    async def f(element):
        return element

    with pytest.raises(TypeError, match="it returned a coroutine.*pass the async function itself"):
        list(mpwds.DataPipeline(range(3)).map(lambda element: f(element), threads=2))


def test_samples_and_fields_are_decoded_by_several_threads_at_a_time():
    barrier = threading.Barrier(3)

    def waits(data):
        if data != b"0":
            barrier.wait(PATIENCE_S)
        return int(data)

    samples = [{"__key__": str(n), "x": str(n).encode()} for n in range(7)]
    decoded = mpwds.DataPipeline(samples).decode(("x", waits), threads=3).to_tuple("x")
    assert list(decoded) == [(n,) for n in range(7)]
    pairs = mpwds.DataPipeline([(b"0", 0), (b"1", 1), (b"2", 2), (b"3", 3)])
    assert list(pairs.map_tuple(waits, threads=3)) == [(n, n) for n in range(4)]


def test_a_slow_call_delays_others_only_in_order():
    slow = threading.Event()

    def f(n):
        if n == 1:
            slow.wait(PATIENCE_S)
        return n

    stream = Map(f, threads=2, in_order=False).stream(Source(range(20)))
    quick = [next(stream)[1] for _ in range(19)]
    slow.set()
    assert (quick, [n for _, n in stream]) == ([0, *range(2, 20)], [1])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_at_most_as_many_elements_are_held(threads):
    taken = []
    source = (taken.append(n) or n for n in range(50))
    for number, _ in enumerate(Map(str, threads=threads)(source)):
        assert len(taken) <= number + threads


@settings(max_examples=30)
@given(
    n=st.integers(0, 30),
    stop=st.integers(0, 31),
    keep=st.integers(0, 3),
    threads=st.integers(2, 5),
    is_async=st.booleans(),
)
def test_a_stream_continues_from_its_state_exactly(continues, n, stop, keep, threads, is_async):
    def f(element):
        return -element if element % 3 < keep else None

    async def g(element):
        return f(element)

    stage = Map(g if is_async else f, threads=threads)
    drawn = Map(lambda element: element + random.random())
    continues(lambda: stage.stream(drawn.stream(Source(range(n)))), stop)


@settings(max_examples=30)
@given(stop=st.integers(0, 30))
def test_in_any_order_each_element_comes_once_across_a_state(stop):
    stage = Map(lambda n: n, threads=4, in_order=False)
    first, second = stage.stream(Source(range(30))), stage.stream(Source(range(30)))
    seen = [next(first)[1] for _ in range(stop)]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert sorted(seen + [n for _, n in second]) == list(range(30))


@pytest.mark.parametrize("stage", [Map(lambda n: 6 // n, threads=3), Map(lambda n: 6 // n)], ids=["3", "1"])
def test_an_error_comes_at_its_element_and_again_where_the_state_is_loaded(stage):
    numbers = [1, 2, 0, 3]
    stream = stage.stream(Source(numbers))
    assert [next(stream)[1] for _ in range(2)] == [6, 3]
    with pytest.raises(ZeroDivisionError) as raised:
        next(stream)
    assert raised.value.incident.place == "element 2"
    again = stage.stream(Source(numbers))
    again.load_state_dict(stream.state_dict())
    with pytest.raises(ZeroDivisionError):
        next(again)
    assert [[n for _, n in each] for each in (stream, again)] == [[2], [2]]


def test_an_error_of_the_source_comes_after_the_elements_before_it():
    stage, before = Map(str, threads=4), Map(lambda n: 6 // n)
    stream = stage.stream(before.stream(Source([1, 2, 0, 3])))
    assert [next(stream)[1] for _ in range(2)] == ["6", "3"]
    again = stage.stream(before.stream(Source([1, 2, 0, 3])))
    again.load_state_dict(stream.state_dict())
    for each in (stream, again):
        with pytest.raises(ZeroDivisionError):
            next(each)
        assert [text for _, text in each] == ["2"]


def test_handlers_skip_or_stop_at_the_element():
    numbers = mpwds.DataPipeline([1, 0, 2, 0, 3])
    for handler, made in ((mpwds.ignore_and_continue, [6, 3, 2]), (mpwds.ignore_and_stop, [6])):
        assert list(numbers.map(lambda n: 6 // n, handler, threads=3)) == made


def test_a_quarantine_counts_what_was_delivered(tmp_path):
    handler = mpwds.quarantine(tmp_path / "bad", budget=0.5)
    numbers = mpwds.DataPipeline([1, 0, 0, 0, *[1] * 4])
    assert list(numbers.map(lambda n: 6 // n, handler, threads=8)) == [6] * 5
    assert len((tmp_path / "bad").read_text().splitlines()) == 3
    with pytest.raises(QuarantineFull):
        list(numbers.map(lambda n: 6 // n, mpwds.quarantine(tmp_path / "more", budget=2), threads=8))


def test_a_sample_keeps_its_key_and_one_of_a_wrong_type_is_named():
    samples = mpwds.DataPipeline([{"__key__": "a", "x": b"1"}, {"__key__": "b", "x": b"2"}])
    assert list(samples.map(lambda sample: {"y": sample["x"]}, threads=2))[1] == {"__key__": "b", "y": b"2"}
    with pytest.raises(TypeError, match="a sample must be a dict, got int"):
        list(mpwds.DataPipeline([{"x": b"1"}, 7]).decode(threads=2))


async def draws_as_coroutine(_):
    return random.random()


@pytest.mark.parametrize("owns_process", [True, False])
@pytest.mark.parametrize(
    "draw",
    [lambda _: random.random(), lambda _: np.random.rand(), draws_as_coroutine],
    ids=["random", "numpy", "async"],
)
def test_a_function_that_draws_from_the_generators_of_the_process_is_refused(draw, owns_process):
    stage = Map(draw, mpwds.ignore_and_continue, threads=2)
    with pytest.raises(SharedRandomError, match="draw in a stage that no thread runs") as raised:
        collect(stage, range(3), Context(owns_process=owns_process))
    assert raised.value.__notes__ == [f"in {stage}, on element 0"]


def test_stages_around_it_draw_the_numbers_that_they_draw_without_threads():
    def drawn(threads):
        numbers = mpwds.DataPipeline(range(20)).map(lambda n: n + random.random())
        return list(numbers.map(lambda n: n, threads=threads).map(lambda n: (n, random.random())))

    before = random.getstate()
    assert drawn(1) == drawn(5)
    assert random.getstate() == before


def test_an_epoch_that_is_left_ends_its_threads_and_drops_what_was_not_begun():
    gate, begun = threading.Event(), []

    def f(n):
        begun.append(n)
        if n:
            gate.wait(PATIENCE_S)

    before = ahead_threads()
    elements = iter(mpwds.DataPipeline(range(100)).map(lambda n: f(n) or n, threads=3))
    assert next(elements) == 0
    stream = Map(functools.partial(f), threads=3).stream(Source(range(100)))
    del stream
    elements.close()
    gate.set()
    for thread in ahead_threads() - before:
        thread.join(PATIENCE_S)
    assert set(begun) <= {0, 1, 2, 3}


def test_coroutines_under_way_are_cancelled_when_their_epoch_is_left():
    cancelled, begun = threading.Event(), threading.Event()

    async def f(n):
        try:
            if n == 2:
                begun.set()
                await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return n

    elements = iter(mpwds.DataPipeline(range(9)).map(f, threads=4))
    assert [next(elements), next(elements)] == [0, 1]
    assert begun.wait(PATIENCE_S)
    elements.close()
    assert cancelled.wait(PATIENCE_S)


def test_a_fork_is_told_to_begin_again():
    elements = iter(mpwds.DataPipeline(range(9)).map(str, threads=2))
    assert [next(elements), next(elements)] == ["0", "1"]
    assert "threads do not survive a fork" in raised_in_fork(lambda: next(elements))
    assert list(elements) == list("2345678")
