import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.context import Context
from mpwds.pipeline.stages.map import Map
from mpwds.pipeline.stream import Source, collect


@settings(max_examples=30, deadline=None)
@given(n=st.integers(0, 30), stop=st.integers(0, 31), keep=st.integers(0, 3))
def test_continues_from_its_state_exactly_random_numbers_included(continues, n, stop, keep):
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


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="map: expected a function, got 3"):
        Map(3)
