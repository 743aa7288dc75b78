import random

import pytest

from mpwds.pipeline.stages.map import MapTuple
from mpwds.pipeline.stream import Source, collect


@pytest.mark.parametrize("stop", range(5))
def test_continues_from_its_state_exactly(stop, continues):
    stage = MapTuple((None, lambda x: x + random.random()))
    continues(lambda: stage.stream(Source((n, n) for n in range(4))), stop)


def test_applies_each_function_to_its_field_and_none_to_none():
    assert collect(MapTuple((str.upper, None, int)), [("a", "b", "7")]) == [("A", "b", 7)]


def test_fields_without_a_function_stay():
    assert collect(MapTuple((int,)), [("7", "8")]) == [(7, "8")]


def test_more_functions_than_fields_are_an_error():
    with pytest.raises(ValueError, match="3 functions for a sample of 2 fields"):
        collect(MapTuple((int, int, int)), [("7", "8")])


def test_a_sample_that_is_no_tuple_is_an_error():
    with pytest.raises(TypeError, match=r"map_tuple needs tuple samples, got a dict; put to_tuple"):
        collect(MapTuple((int,)), [{"cls": 7}])


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="map_tuple: expected functions or None, got 'png'"):
        MapTuple(("png",))
