import numpy as np
import pytest
import webdataset.filters
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.stages.shuffle import detshuffle
from mpwds.pipeline.stream import Source, collect

options = st.fixed_dictionaries(
    {"bufsize": st.integers(0, 40), "initial": st.integers(0, 40), "seed": st.integers(0, 9)}
)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 80), options=options)
def test_gives_the_order_that_webdatasets_gives_in_each_epoch(n, options):
    theirs = webdataset.filters.detshuffle(**options)
    ours = DataPipeline(range(n), detshuffle(**options))
    for _ in range(3):
        assert list(ours) == list(theirs.run(iter(range(n))))


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 60), options=options, stop=st.integers(0, 61))
def test_continues_from_its_state_exactly(continues, n, options, stop):
    continues(lambda: detshuffle(**options).stream(Source(range(n))), stop)


@pytest.mark.parametrize("change", [{"seed": 1}, {"rank": 1}, {"worker": 1}, {"stage": 1}])
def test_depends_on_its_own_seed_and_the_epoch_alone(change):
    whole = collect(detshuffle(50), range(50))
    assert collect(detshuffle(50), range(50), Context(**change)) == whole
    assert collect(detshuffle(50), range(50), Context(epoch=1)) != whole


def test_begins_behind_the_epoch_given():
    assert collect(detshuffle(50, epoch=4), range(50)) == collect(detshuffle(50), range(50), Context(epoch=5))


def test_what_is_no_number_is_refused():
    with pytest.raises(TypeError, match="detshuffle: seed must be a whole number, got 'a'"):
        detshuffle(seed="a")


def test_numpys_integers_are_numbers():
    assert collect(detshuffle(np.int64(4)), range(9)) == collect(detshuffle(4), range(9))
