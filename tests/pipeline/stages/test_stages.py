"""What all stages have in common: they print, pickle, take any iterable, continue, and ask their handler."""

import json
import pickle
from functools import partial

import cloudpickle
import pytest

from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.handlers import (
    ignore_and_continue,
    ignore_and_stop,
    warn_and_continue,
    warn_and_stop,
)
from mpwds.pipeline.stages.batched import batched, bucketed, listed
from mpwds.pipeline.stages.decode import decode, xdecode
from mpwds.pipeline.stages.fields import associate, extract_keys, map_dict, rename, rename_keys, to_tuple
from mpwds.pipeline.stages.info import info, log_keys
from mpwds.pipeline.stages.map import map, map_tuple
from mpwds.pipeline.stages.select import rsample, select, slice
from mpwds.pipeline.stages.shuffle import detshuffle, shuffle
from mpwds.pipeline.stages.unbatched import flatmap, unbatched, unlisted
from mpwds.pipeline.stream import Source


def invert(number):
    return 1 / number


def countdown(number):
    if number == 0:
        raise ZeroDivisionError
    return range(number)


def size_of(text):
    if not text:
        raise ValueError("nothing there")
    return len(text)


# A stage with its handler, a good element, a bad one, and what becomes of the good one.
FAILING = {
    "map(invert": (partial(map, invert), 2, 0, [0.5]),
    "select(invert": (partial(select, invert), 2, 0, [2]),
    "flatmap(countdown": (partial(flatmap, countdown), 2, 0, [0, 1]),
    "map_dict(a=invert": (partial(map_dict, a=invert), {"a": 2}, {"a": 0}, [{"a": 0.5}]),
    "map_tuple(invert": (partial(map_tuple, invert), (2,), (0,), [(0.5,)]),
    "to_tuple('a'": (partial(to_tuple, "a"), {"a": 2}, {"b": 2}, [(2,)]),
    "rename(b='a'": (partial(rename, b="a"), {"a": 2}, {"c": 2}, [{"b": 2}]),
    "rename_keys(('b', 'a')": (partial(rename_keys, ("b", "a")), {"a": 2}, {"c": 2}, [{"b": 2}]),
    "extract_keys('a*'": (partial(extract_keys, "a*"), {"a": 2}, {"b": 2}, [(2,)]),
    "associate(dict": (
        partial(associate, {"a": {"b": 2}}),
        {"__key__": "a"},
        {"c": 1},
        [{"__key__": "a", "b": 2}],
    ),
    "xdecode(": (xdecode, {"txt": b"a"}, {"txt": b"\xff"}, [{"txt": "a"}]),
    "decode(": (decode, {"cls": b"7"}, {"cls": b"x"}, [{"cls": 7}]),
    "unlisted(": (unlisted, [2, 3], 4, [2, 3]),
    "unbatched(": (unbatched, ([2, 3],), 4, [(2,), (3,)]),
    "batched(1": (partial(batched, 1, sum), 2, "x", [2]),
    "batched(by=size_of": (
        partial(batched, by=size_of, max_total=1, collation_fn=None),
        "a",
        "",
        [["a"]],
    ),
    "bucketed(size_of": (partial(bucketed, size_of, [2], 1, None), "a", "", [["a"]]),
}

OTHERS = {
    "shuffle(3, seed=1)": (shuffle(3, seed=1), range(9)),
    "detshuffle(3)": (detshuffle(3), range(9)),
    "rsample(0.5)": (rsample(0.5), range(20)),
    "slice(1, 7, 2)": (slice(1, 7, 2), range(9)),
    "slice(0, None, 2)": (slice(None, None, 2), range(9)),
    "slice(1, 3)": (slice(1, 3), range(9)),
    "slice(3)": (slice(3), range(9)),
    "info(n=0)": (info(n=0), range(9)),
    "log_keys()": (log_keys(), range(9)),
    "batched(2, collation_fn=None)": (listed(2), range(9)),
    "batched(max_bytes=9, collation_fn=None)": (batched(max_bytes=9, collation_fn=None), "abc"),
    "batched(4, by=len, max_total=9, collation_fn=None)": (batched(4, None, by=len, max_total=9), "abc"),
    "bucketed(len, [3], collation_fn=None, max_total=9)": (
        bucketed(len, [3], None, None, max_total=9),
        "abc",
    ),
    "bucketed(len, [3], batchsize=(2, 1), collation_fn=None)": (bucketed(len, [3], [2, 1], None), "abc"),
    "decode(allow_pickle=True)": (decode(allow_pickle=True), [{"pyd": pickle.dumps({1})}]),
    "map(str, threads=3, in_order=False)": (map(str, threads=3, in_order=False), range(1)),
    "map_tuple(str, threads=2)": (map_tuple(str, threads=2), [(1,), (2,)]),
}


@pytest.fixture(params=FAILING)
def failing(request):
    stage, good, bad, made = FAILING[request.param]
    return request.param, stage, [good, bad, good, good], made


def test_an_error_is_raised_with_stage_element_and_incident(failing):
    call, stage, elements, _ = failing
    with pytest.raises((ArithmeticError, LookupError, ValueError, TypeError)) as caught:
        list(DataPipeline(elements, stage()))
    (note,) = caught.value.__notes__
    assert note.startswith(f"in {call}")
    assert note.endswith("element 1")
    assert caught.value.incident.stage == str(stage())


@pytest.mark.parametrize("handler", [ignore_and_continue, ignore_and_stop])
def test_a_handler_leaves_the_element_out_and_goes_on_or_stops(failing, handler):
    call, stage, elements, made = failing
    stage = stage(handler=handler)
    expected = made * (3 if handler is ignore_and_continue else 1)
    assert list(DataPipeline(elements, stage)) == expected
    assert list(stage(iter(elements))) == expected
    assert str(stage).startswith(call)
    assert str(stage).endswith(f"handler={handler.__name__})")


def test_one_warning_names_the_element(failing):
    _, stage, elements, made = failing
    with pytest.warns(UserWarning, match="left out: .*element 1") as caught:
        assert list(DataPipeline(elements, stage(handler=warn_and_continue))) == made * 3
    assert len(caught) == 1
    with pytest.warns(UserWarning, match="stopped: .*element 1"):
        assert list(DataPipeline(elements, stage(handler=warn_and_stop))) == made


@pytest.mark.parametrize("handler", [ignore_and_continue, ignore_and_stop])
@pytest.mark.parametrize("stop", range(5))
def test_continues_from_its_state_exactly_with_bad_elements(failing, handler, stop, continues):
    _, stage, elements, _ = failing
    continues(lambda: stage(handler=handler).stream(Source(elements)), stop)


@pytest.mark.parametrize("handler", [ignore_and_continue, ignore_and_stop])
def test_comes_back_from_a_pickle_as_it_was(failing, handler):
    _, stage, elements, _ = failing
    stage = stage(handler=handler)
    copy = cloudpickle.loads(cloudpickle.dumps(stage))
    assert str(copy) == str(stage)
    assert list(DataPipeline(elements, copy)) == list(DataPipeline(elements, stage))


def test_a_handler_that_cannot_be_called_is_refused(failing):
    _, stage, _, _ = failing
    with pytest.raises(TypeError, match="handler must be a function of the exception"):
        stage(handler="warn")


@pytest.mark.parametrize("call", OTHERS)
def test_stages_that_cannot_fail_print_pickle_and_continue_too(call, continues):
    stage, elements = OTHERS[call]
    assert str(stage) == call
    copy = cloudpickle.loads(cloudpickle.dumps(stage))
    assert list(copy(elements)) == list(stage(elements))
    assert list(DataPipeline(elements, copy)) == list(DataPipeline(elements, stage))
    for stop in (0, 1, 4):
        continues(lambda: stage.stream(Source(elements)), stop)


def test_a_package_that_is_missing_makes_no_element_bad():
    def needs_a_package(element):
        raise ImportError("no package")

    with pytest.raises(ImportError):
        list(map(needs_a_package, ignore_and_continue)(range(3)))


def test_states_are_small_and_hold_no_data():
    stream = batched(100, collation_fn=None).stream(Source(["x" * 1000] * 50))
    next(stream)
    assert len(json.dumps(stream.state_dict())) < 1000
