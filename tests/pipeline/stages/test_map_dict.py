import random

import pytest

from mpwds.pipeline.stages.map import MapDict
from mpwds.pipeline.stream import Source, collect


@pytest.mark.parametrize("stop", range(5))
def test_continues_from_its_state_exactly(stop, continues):
    stage = MapDict({"x": lambda x: x + random.random()})
    continues(lambda: stage.stream(Source({"x": n} for n in range(4))), stop)


def test_replaces_the_fields_that_have_a_function():
    assert collect(MapDict({"cls": int}), [{"cls": "7", "txt": "8"}]) == [{"cls": 7, "txt": "8"}]


def test_leaves_the_sources_sample_as_it_is():
    sample = {"cls": "7"}
    collect(MapDict({"cls": int}), [sample])
    assert sample == {"cls": "7"}


def test_a_missing_field_is_an_error_that_lists_those_that_are_there():
    with pytest.raises(KeyError, match="no field 'png'; the sample has jpg, cls"):
        collect(MapDict({"png": len}), [{"jpg": b"", "cls": 7}])


def test_a_sample_that_is_no_dict_is_an_error():
    with pytest.raises(TypeError, match="map_dict needs dict samples, got a tuple"):
        collect(MapDict({"png": len}), [(1, 2)])


@pytest.mark.parametrize(("functions", "error"), [({}, ValueError), ({"cls": 3}, TypeError)])
def test_no_functions_are_refused(functions, error):
    with pytest.raises(error, match="map_dict: "):
        MapDict(functions)
