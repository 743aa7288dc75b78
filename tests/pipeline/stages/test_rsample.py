import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.context import Context
from mpwds.pipeline.stages.select import rsample
from mpwds.pipeline.stream import Source, collect


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 30), p=st.floats(0, 1), stop=st.integers(0, 31))
def test_continues_from_its_state_exactly(continues, n, p, stop):
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


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_what_is_no_probability_is_refused(p):
    with pytest.raises(ValueError, match="rsample: p is a probability"):
        rsample(p)
