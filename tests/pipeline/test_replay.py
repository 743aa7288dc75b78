import json
import random
import warnings

import pytest

from mpwds.pipeline.dataset import DataPipeline


def every_other(source):
    for element in source:
        yield element + random.random()
        next(source, None)


def pipeline(source=range(40)):
    return DataPipeline(source).compose(every_other).shuffle(5).map(lambda n: n + random.random()).batched(3)


def plain(stream):
    return [batch.tolist() for _, batch in stream]


@pytest.mark.parametrize("stop", [1, 4, 7])
def test_continues_exactly_with_one_warning_that_names_the_stage(stop):
    first = pipeline().stream()
    seen = [next(first)[1].tolist() for _ in range(stop)]
    second = pipeline().stream()
    with pytest.warns(UserWarning, match=rf"compose\(every_other\) .* the first {stop} elements") as caught:
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert len(caught) == 1
    assert seen + plain(second) == plain(pipeline().stream())


def test_continues_a_second_time():
    stream = pipeline().stream()
    next(stream)
    state = stream.state_dict()
    rest = plain(stream)
    for _ in range(2):
        with pytest.warns(UserWarning, match="elements without addresses"):
            stream.load_state_dict(state)
        assert plain(stream) == rest


def test_the_beginning_needs_no_replay_and_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stream = pipeline().stream()
        stream.load_state_dict(stream.state_dict())
    assert plain(stream) == plain(pipeline().stream())


def test_an_iterable_source_is_replayed():
    stream = DataPipeline(lambda: iter("abcd")).stream()
    with pytest.warns(UserWarning, match="<lambda> gives elements without addresses"):
        stream.load_state_dict({"delivered": 3})
    assert [element for _, element in stream] == ["d"]


def test_a_source_that_gives_fewer_elements_than_before_is_an_error():
    elements = ["a", "b"]
    stream = DataPipeline(lambda: iter(elements)).stream()
    list(stream)
    elements.clear()
    state = stream.state_dict()
    with (
        pytest.warns(UserWarning, match="elements without addresses"),
        pytest.raises(RuntimeError, match="ended after 0 elements but 2 were delivered before"),
    ):
        stream.load_state_dict(state)
