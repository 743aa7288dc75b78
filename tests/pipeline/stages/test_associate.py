import random

import pytest
import webdataset.filters
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.stages.map import associate
from mpwds.pipeline.stream import Source, collect

keys = st.sampled_from("abcd")
extra = st.dictionaries(keys, st.dictionaries(st.sampled_from(["x", "y"]), st.integers()))


@settings(max_examples=60, deadline=None)
@given(found=keys.map(list) | st.lists(keys, max_size=5), extra=extra)
def test_adds_what_webdataset_adds(found, extra):
    def samples():
        return [{"__key__": key, "x": "old"} for key in found]

    for associator in (extra, lambda key: extra.get(key, {})):
        theirs = list(webdataset.filters.associate(associator)(samples()))
        assert collect(associate(associator), samples()) == theirs


@pytest.mark.parametrize("stop", range(5))
def test_continues_from_its_state_exactly_random_numbers_included(stop, continues):
    stage = associate(lambda key: {"x": random.random()})
    continues(lambda: stage.stream(Source({"__key__": key} for key in "abcd")), stop)


def test_the_sample_itself_stays_as_it_is():
    sample = {"__key__": "a"}
    collect(associate({"a": {"x": 1}}), [sample])
    assert sample == {"__key__": "a"}


def test_a_function_may_have_nothing_to_add():
    assert collect(associate(lambda key: None), [{"__key__": "a"}]) == [{"__key__": "a"}]


def test_a_sample_without_a_key_is_an_error():
    with pytest.raises(ValueError, match="no field '__key__'; the sample has cls"):
        collect(associate({}), [{"cls": 7}])


def test_what_is_neither_dict_nor_function_is_refused():
    with pytest.raises(TypeError, match="associate: expected a dict or a function of the key, got 3"):
        associate(3)
