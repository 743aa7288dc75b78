import random

import pytest
import webdataset.filters
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.context import Context
from mpwds.pipeline.stages.fields import MapDict, associate, rename
from mpwds.pipeline.stages.map import Map, MapTuple
from mpwds.pipeline.stream import Source, collect


@settings(max_examples=30)
@given(n=st.integers(0, 30), stop=st.integers(0, 31), keep=st.integers(0, 3))
def test_map_continues_from_its_state_exactly_random_numbers_included(continues, n, stop, keep):
    stage = Map(lambda element: element + random.random() if element % 3 < keep else None)
    continues(lambda: stage.stream(Source(range(n))), stop)


@pytest.mark.parametrize(
    ("stage", "elements", "made"),
    [
        (Map(lambda n: -n), range(4), [0, -1, -2, -3]),
        (Map(lambda n: n or None), [0, 1, 0, 2], [1, 2]),
        (Map(lambda sample: {"__key__": "b"}), [{"__key__": "a"}], [{"__key__": "b"}]),
        (MapDict({"cls": int}), [{"cls": "7", "txt": "8"}], [{"cls": 7, "txt": "8"}]),
        (MapTuple((str.upper, None, int)), [("a", "b", "7")], [("A", "b", 7)]),
        (MapTuple((str.upper, None, int)), [["a", "b", "7"]], [("A", "b", 7)]),
        (MapTuple((int,)), [("7", "8")], [(7, "8")]),
        (associate(lambda key: None), [{"__key__": "a"}], [{"__key__": "a"}]),
    ],
    ids=[
        "the function of each element in order",
        "None drops the element",
        "a dict that has a key keeps it",
        "fields that have a function are replaced",
        "each function is of its field and None of none",
        "a list becomes a tuple",
        "fields without a function stay",
        "a function may have nothing to add",
    ],
)
def test_stages_of_functions_make(stage, elements, made):
    assert collect(stage, elements) == made


def test_a_dict_made_from_a_sample_gets_its_key_without_being_changed():
    made = {"cls": 7}
    assert collect(Map(lambda sample: made), [{"__key__": "a"}]) == [{"__key__": "a", "cls": 7}]
    assert made == {"cls": 7}


@pytest.mark.parametrize("stage", [MapDict({"cls": int}), associate({"a": {"x": 1}}), rename(a="cls")])
def test_the_sources_sample_stays_as_it_is(stage):
    sample = {"__key__": "a", "cls": "7"}
    collect(stage, [sample])
    assert sample == {"__key__": "a", "cls": "7"}


def test_every_element_and_every_epoch_has_its_own_random_numbers():
    stage = Map(lambda element: random.random())
    numbers = [collect(stage, range(10), Context(epoch=epoch)) for epoch in (0, 1)]
    assert len({*numbers[0], *numbers[1]}) == 20


keys = st.sampled_from("abcd")

extra = st.dictionaries(keys, st.dictionaries(st.sampled_from(["x", "y"]), st.integers()))


@given(found=keys.map(list) | st.lists(keys, max_size=5), extra=extra)
def test_associate_adds_what_webdataset_adds(found, extra):
    def samples():
        return [{"__key__": key, "x": "old"} for key in found]

    for associator in (extra, lambda key: extra.get(key, {})):
        theirs = list(webdataset.filters.associate(associator)(samples()))
        assert collect(associate(associator), samples()) == theirs
