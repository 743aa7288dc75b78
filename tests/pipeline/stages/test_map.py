import random

import pytest
import webdataset.filters
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.context import Context
from mpwds.pipeline.stages.map import Map, MapDict, MapTuple, associate
from mpwds.pipeline.stream import Source, collect


@settings(max_examples=30, deadline=None)
@given(n=st.integers(0, 30), stop=st.integers(0, 31), keep=st.integers(0, 3))
def test_map_continues_from_its_state_exactly_random_numbers_included(continues, n, stop, keep):
    stage = Map(lambda element: element + random.random() if element % 3 < keep else None)
    continues(lambda: stage.stream(Source(range(n))), stop)


def test_yields_the_function_of_each_element_in_order():
    assert collect(Map(lambda n: -n), range(4)) == [0, -1, -2, -3]


def test_none_drops_the_element():
    assert collect(Map(lambda n: n or None), [0, 1, 0, 2]) == [1, 2]


def test_a_dict_made_from_a_sample_gets_its_key_without_being_changed():
    made = {"cls": 7}
    assert collect(Map(lambda sample: made), [{"__key__": "a"}]) == [{"__key__": "a", "cls": 7}]
    assert made == {"cls": 7}


def test_a_dict_that_has_a_key_keeps_it():
    assert collect(Map(lambda sample: {"__key__": "b"}), [{"__key__": "a"}]) == [{"__key__": "b"}]


def test_every_element_and_every_epoch_has_its_own_random_numbers():
    stage = Map(lambda element: random.random())
    numbers = [collect(stage, range(10), Context(epoch=epoch)) for epoch in (0, 1)]
    assert len({*numbers[0], *numbers[1]}) == 20


def test_replaces_the_fields_that_have_a_function():
    assert collect(MapDict({"cls": int}), [{"cls": "7", "txt": "8"}]) == [{"cls": 7, "txt": "8"}]


def test_map_dict_leaves_the_sources_sample_unchanged():
    sample = {"cls": "7"}
    collect(MapDict({"cls": int}), [sample])
    assert sample == {"cls": "7"}


@pytest.mark.parametrize("kind", [tuple, list])
def test_applies_each_function_to_its_field_and_none_to_none(kind):
    assert collect(MapTuple((str.upper, None, int)), [kind(("a", "b", "7"))]) == [("A", "b", 7)]


def test_fields_without_a_function_stay():
    assert collect(MapTuple((int,)), [("7", "8")]) == [(7, "8")]


keys = st.sampled_from("abcd")

extra = st.dictionaries(keys, st.dictionaries(st.sampled_from(["x", "y"]), st.integers()))


@settings(max_examples=60, deadline=None)
@given(found=keys.map(list) | st.lists(keys, max_size=5), extra=extra)
def test_associate_adds_what_webdataset_adds(found, extra):
    def samples():
        return [{"__key__": key, "x": "old"} for key in found]

    for associator in (extra, lambda key: extra.get(key, {})):
        theirs = list(webdataset.filters.associate(associator)(samples()))
        assert collect(associate(associator), samples()) == theirs


def test_associate_leaves_the_sources_sample_unchanged():
    sample = {"__key__": "a"}
    collect(associate({"a": {"x": 1}}), [sample])
    assert sample == {"__key__": "a"}


def test_a_function_may_have_nothing_to_add():
    assert collect(associate(lambda key: None), [{"__key__": "a"}]) == [{"__key__": "a"}]
