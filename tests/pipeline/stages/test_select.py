import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.stages.select import Select
from mpwds.pipeline.stream import Source, collect


@settings(max_examples=30, deadline=None)
@given(n=st.integers(0, 30), stop=st.integers(0, 31), share=st.sampled_from([0.0, 0.3, 1.0]))
def test_continues_from_its_state_exactly_even_when_it_draws_lots(continues, n, stop, share):
    stage = Select(lambda element: random.random() < share)
    continues(lambda: stage.stream(Source(range(n))), stop)


def test_keeps_what_the_predicate_accepts_in_order():
    assert collect(Select(lambda n: n % 2), range(6)) == [1, 3, 5]


def test_dropping_everything_ends_the_stream():
    assert collect(Select(lambda n: False), range(6)) == []


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="select: expected a function, got None"):
        Select(None)
