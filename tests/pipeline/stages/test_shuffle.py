import numpy as np
import pytest
import webdataset.filters
from hypothesis import given
from hypothesis import strategies as st

from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.stages.shuffle import Shuffle, detshuffle, shuffle
from mpwds.pipeline.stream import Source, collect


@st.composite
def shuffles(draw):
    size = draw(st.integers(1, 60))
    return Shuffle(size, draw(st.integers(1, size)), draw(st.none() | st.integers()))


@given(n=st.integers(0, 150), stage=shuffles())
def test_yields_each_element_once(n, stage):
    assert sorted(collect(stage, range(n))) == list(range(n))


@given(n=st.integers(0, 100), stage=shuffles(), stop=st.integers(0, 101))
def test_continues_from_its_state_exactly(continues, n, stage, stop):
    continues(lambda: stage.stream(Source(range(n))), stop)


def test_a_size_of_one_keeps_the_order():
    assert collect(Shuffle(1), range(50)) == list(range(50))


def test_takes_in_initial_elements_before_the_first_and_then_two_for_each_until_full():
    source = Source(range(100))
    stream = Shuffle(10, initial=4).stream(source)
    taken = [next(stream) and source.state_dict()["cursor"] for _ in range(10)]
    assert taken == [4, 6, 8, 10, 12, 14, 16, 17, 18, 19]


def test_an_error_on_the_way_changes_no_order():
    failing = {17}

    def fails_once(number):
        if number in failing:
            failing.clear()
            raise ValueError(number)
        return number

    dataset = DataPipeline(range(40)).map(fails_once).shuffle(30, initial=2)
    stream, got = dataset.stream(), []
    with pytest.raises(ValueError, match="17"):
        got.extend(element for _, element in stream)
    resumed = dataset.stream()
    resumed.load_state_dict(stream.state_dict())
    assert got + [element for _, element in resumed] == list(dataset)


def test_takes_in_a_hundred_at_first_by_default():
    source = Source(range(1000))
    next(Shuffle(500).stream(source))
    assert source.state_dict() == {"cursor": 100}


def test_any_element_of_a_full_buffer_can_come_first():
    firsts = {collect(Shuffle(5, seed=seed), range(5))[0] for seed in range(100)}
    assert firsts == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("change", [{"epoch": 1}, {"seed": 1}, {"rank": 1}, {"worker": 1}, {"stage": 1}])
def test_every_epoch_seed_rank_worker_and_position_has_its_own_order(change):
    assert collect(Shuffle(50), range(50)) != collect(Shuffle(50), range(50), Context(**change))


def test_its_own_seed_goes_before_the_contexts():
    orders = [collect(Shuffle(50, seed=3), range(50), Context(seed=seed)) for seed in (None, 0, 1)]
    assert orders[0] == orders[1] == orders[2] != collect(Shuffle(50), range(50))


def test_whole_numbers_may_be_written_as_floats_or_of_numpy():
    numbers = DataPipeline(range(30), seed=0)
    expected = list(numbers.shuffle(10, initial=5))
    assert list(numbers.shuffle(1e1, initial=5.0)) == expected
    assert list(numbers.shuffle(np.int64(10), initial=np.int64(5))) == expected
    assert collect(detshuffle(np.int64(4)), range(9)) == collect(detshuffle(4), range(9))


options = st.fixed_dictionaries(
    {"bufsize": st.integers(0, 40), "initial": st.integers(0, 40), "seed": st.integers(0, 9)}
)


@given(n=st.integers(0, 80), options=options)
def test_gives_the_order_that_webdatasets_gives_in_each_epoch(n, options):
    theirs = webdataset.filters.detshuffle(**options)
    ours = DataPipeline(range(n), detshuffle(**options))
    for _ in range(3):
        assert list(ours) == list(theirs.run(iter(range(n))))


@given(n=st.integers(0, 60), options=options, stop=st.integers(0, 61))
def test_detshuffle_continues_from_its_state_exactly(continues, n, options, stop):
    continues(lambda: detshuffle(**options).stream(Source(range(n))), stop)


@pytest.mark.parametrize("change", [{"seed": 1}, {"rank": 1}, {"worker": 1}, {"stage": 1}])
def test_depends_on_its_own_seed_and_the_epoch_alone(change):
    whole = collect(detshuffle(50), range(50))
    assert collect(detshuffle(50), range(50), Context(**change)) == whole
    assert collect(detshuffle(50), range(50), Context(epoch=1)) != whole


def test_begins_behind_the_epoch_given():
    assert collect(detshuffle(50, epoch=4), range(50)) == collect(detshuffle(50), range(50), Context(epoch=5))


@pytest.mark.parametrize(("ranks", "workers", "held"), [(1, 1, 60), (2, 3, 10), (1, 96, 1)])
def test_a_total_is_shared_by_all_streams(ranks, workers, held):
    context, source = Context(world_size=ranks, workers=workers), Source(range(100))
    stream = shuffle(total=60, initial=60).stream(source, context)
    next(stream)
    assert source.state_dict()["cursor"] == held
