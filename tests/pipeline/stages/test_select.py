import random
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.context import Context
from mpwds.pipeline.stages.map import Map
from mpwds.pipeline.stages.select import Select, rsample, slice
from mpwds.pipeline.stream import Source, collect


@settings(max_examples=30)
@given(n=st.integers(0, 30), stop=st.integers(0, 31), share=st.sampled_from([0.0, 0.3, 1.0]))
def test_continues_from_its_state_exactly_even_when_it_draws_lots(continues, n, stop, share):
    stage = Select(lambda element: random.random() < share)
    continues(lambda: stage.stream(Source(range(n))), stop)


@given(n=st.integers(0, 30), p=st.floats(0, 1), stop=st.integers(0, 31))
def test_rsample_continues_from_its_state_exactly(continues, n, p, stop):
    continues(lambda: rsample(p).stream(Source(range(n))), stop)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_keeps_the_share_asked_for_in_order(p):
    kept = collect(rsample(p), range(10_000))
    assert kept == sorted(set(kept))
    assert abs(len(kept) / 10_000 - p) < 0.02


def test_keeps_all_and_none_at_the_ends():
    assert collect(rsample(1), range(1000)) == list(range(1000))
    assert collect(rsample(0), range(1000)) == []


@pytest.mark.parametrize("change", [{"epoch": 1}, {"seed": 1}, {"stage": 1}])
def test_every_epoch_seed_and_position_keeps_others(change):
    assert collect(rsample(0.5), range(100)) != collect(rsample(0.5), range(100), Context(**change))


@pytest.mark.parametrize("change", [{"rank": 1}, {"worker": 1}, {}])
def test_it_is_the_same_elements_whoever_reads_them(change):
    assert collect(rsample(0.5), range(100)) == collect(rsample(0.5), range(100), Context(**change))


positions = st.none() | st.integers(0, 25)

ranges = (
    st.tuples(positions)
    | st.tuples(positions, positions)
    | st.tuples(positions, positions, st.integers(1, 5))
)


@given(n=st.integers(0, 20), args=ranges)
def test_yields_what_islice_yields(n, args):
    assert collect(slice(*args), range(n)) == list(islice(range(n), *args))


@given(n=st.integers(0, 20), args=ranges, stop=st.integers(0, 21))
def test_slice_continues_from_its_state_exactly(continues, n, args, stop):
    continues(lambda: slice(*args).stream(Source(range(n))), stop)


@pytest.mark.parametrize("args", [(0,), (3,), (1, 3), (0, 9, 4)])
def test_nothing_is_read_behind_the_last_element(args):
    source = Source(range(20))
    elements = [element for _, element in slice(*args).stream(source)]
    assert source.state_dict()["cursor"] == (elements[-1] + 1 if elements else 0)


def test_an_element_that_fails_counts_for_nothing():
    stream = slice(1, 3).stream(Map(lambda n: 6 // n).stream(Source([6, 0, 3, 2])))
    with pytest.raises(ZeroDivisionError):
        next(stream)
    assert [element for _, element in stream] == [2, 3]


def test_numpys_integers_are_positions():
    assert list(slice(*np.array([1, 8, 3]))(range(10))) == [1, 4, 7]
