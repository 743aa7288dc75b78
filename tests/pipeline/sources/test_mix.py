import copy
from collections import Counter
from itertools import accumulate, islice

import numpy as np
import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.sources.mix import RandomMix, RoundRobin
from tests.pipeline.places import read_everywhere

RULES = ["first_exhausted", "all_exhausted", "all_exhausted_without_replacement", "never", 13]
LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=4)


def parts(lengths):
    """Datasets of these lengths, whose elements tell where they come from."""
    return [[(part, number) for number in range(length)] for part, length in enumerate(lengths)]


@pytest.mark.filterwarnings("ignore:with_epoch.* the dataset is empty")
@settings(max_examples=80, deadline=None)
@given(
    lengths=LENGTHS,
    stop=st.integers(0, 40),
    rule=st.sampled_from(RULES),
    exact=st.booleans(),
    weights=st.data(),
)
def test_any_mix_continues_from_its_state_exactly(continues, lengths, stop, rule, exact, weights):
    probs = weights.draw(st.lists(st.floats(0.1, 3), min_size=len(lengths), max_size=len(lengths)))
    pipelines = [DataPipeline(part).shuffle(3) for part in parts(lengths)]
    mix = RandomMix(pipelines, probs, stop=rule, exact=exact)
    mix = DataPipeline(mix.with_epoch(30)) if rule == "never" else mix
    continues(lambda: mix.batched(2).stream(Context(epoch=1, worker=0, workers=1)), stop)


@settings(max_examples=30, deadline=None)
@given(lengths=LENGTHS, stop=st.integers(0, 40), longest=st.booleans())
def test_round_robin_continues_from_its_state_exactly(continues, lengths, stop, longest):
    mix = RoundRobin(parts(lengths), longest)
    continues(mix.stream, stop)


@settings(max_examples=40, deadline=None)
@given(lengths=LENGTHS, exact=st.booleans())
def test_without_replacement_each_element_comes_once_and_each_part_in_its_order(lengths, exact):
    mixed = list(RandomMix(parts(lengths), longest=True, exact=exact))
    assert sorted(mixed) == sorted(element for part in parts(lengths) for element in part)
    for part, expected in enumerate(parts(lengths)):
        assert [element for element in mixed if element[0] == part] == expected


@settings(max_examples=30, deadline=None)
@given(world_size=st.integers(1, 2), workers=st.integers(1, 3))
def test_over_ranks_and_workers_each_element_comes_once(world_size, workers):
    mix = RandomMix(parts([20, 7, 3]), [5, 1, 1], longest=True)
    read = read_everywhere(mix.stream, world_size, workers)
    assert sorted(read) == sorted(element for part in parts([20, 7, 3]) for element in part)


@settings(max_examples=60, deadline=None)
@given(lengths=LENGTHS, longest=st.booleans())
def test_round_robin_is_webdatasets(lengths, longest):
    mixed = list(RoundRobin(parts(lengths), longest))
    if longest or all(lengths):
        assert mixed == list(webdataset.RoundRobin(parts(lengths), longest))


@settings(max_examples=60, deadline=None)
@given(weights=st.lists(st.floats(0.001, 1000), min_size=1, max_size=6), n=st.integers(1, 200))
def test_exact_proportions_hold_in_every_beginning_to_less_than_one_element(weights, n):
    mix = RandomMix([[part] for part in range(len(weights))], weights, stop=n, exact=True)
    drawn = list(mix)
    for part, weight in enumerate(weights):
        counts = accumulate(element == part for element in drawn)
        for taken, count in enumerate(counts, start=1):
            assert abs(count - taken * weight / sum(weights)) < 1 + 1e-9


def test_exact_proportions_begin_again_when_a_part_has_dropped_out():
    weights = [5, 3, 2]
    endless = list(RandomMix([[0], [1], [2]], weights, stop=9, exact=True))
    third = [place for place, part in enumerate(endless) if part == 0][2]
    mixed = list(RandomMix([[0] * 2, [1] * 40, [2] * 40], weights, longest=True, exact=True))
    assert mixed[:third] == endless[:third]
    assert mixed[third : third + 20] == list(RandomMix([[1], [2]], weights[1:], stop=20, exact=True))


def test_random_proportions_are_those_of_the_weights():
    counts = Counter(RandomMix([[0], [1], [2]], [6, 3, 1], stop=4000))
    assert [round(counts[part] / 400) for part in range(3)] == [6, 3, 1]


def test_weights_are_proportions_and_a_weight_of_zero_gives_nothing():
    first, same = (list(RandomMix(["ab", "cd"], weights, stop=50)) for weights in ([3, 1], [0.75, 0.25]))
    assert first == same
    assert list(RandomMix(["ab", "cd"], [1, 0], longest=True)) == ["a", "b"]
    assert list(RandomMix(["ab", "cd"], [1, 0], stop="all_exhausted")) == ["a", "b"]


def test_the_first_exhausted_ends_the_mix():
    mixed = list(RandomMix([range(100), "ab"], exact=True))
    assert mixed == [0, "a", 1, "b", 2]


def test_all_exhausted_repeats_the_small_ones_until_the_largest_is_through():
    mixed = list(RandomMix([range(5), "ab"], stop="all_exhausted", exact=True))
    assert mixed == [0, "a", 1, "b", 2, "a", 3, "b", 4, "a"]


def test_a_repeated_part_is_in_another_epoch():
    small = DataPipeline(range(20)).shuffle(20)
    mixed = [n for n in RandomMix([small, [-1] * 60], stop="all_exhausted", exact=True) if n >= 0]
    runs = [tuple(mixed[start : start + 20]) for start in (0, 20, 40)]
    assert len(set(runs)) == 3
    assert all(sorted(run) == list(range(20)) for run in runs)


def test_never_goes_on_and_a_number_stops():
    mixed = list(islice(RandomMix(["ab", "c"], stop="never"), 500))
    assert len(mixed) == 500
    assert mixed[:100] == list(RandomMix(["ab", "c"], stop=100))


@pytest.mark.parametrize("rule", RULES)
def test_parts_that_give_nothing_do_not_hang_it(rule):
    assert list(RandomMix([[], []], stop=rule)) == []
    if rule != "first_exhausted":
        assert len(list(islice(RandomMix([[], "ab"], stop=rule), 20))) >= 2


class OnceOnly:
    """A dataset that gives elements in its first run, and nothing in any other."""

    def __init__(self):
        self.runs = 0

    def stream(self, context):
        self.runs += 1
        assert self.runs < 50, "it is started again for ever"
        return DataPipeline("xyz" if self.runs == 1 else "").stream(context)


@pytest.mark.parametrize("rule", ["never", "all_exhausted", 20])
def test_a_part_that_gives_nothing_when_it_is_repeated_drops_out(rule):
    mixed = list(islice(RandomMix([OnceOnly(), "abcde"], stop=rule, exact=True), 30))
    assert mixed.count("x") == 1
    assert {*"abcde"} <= set(mixed)


@pytest.mark.parametrize("kind", [{"exact": True}, {"exact": False}, None])
@pytest.mark.parametrize("rule", RULES)
def test_a_state_stays_as_it_is_while_the_mix_goes_on(kind, rule):
    datasets = [range(3), "ab", []]
    mix = RandomMix(datasets, stop=rule, **kind) if kind else RoundRobin(datasets, rule == "all_exhausted")
    stream = mix.stream()
    states = [stream.state_dict()]
    copies = copy.deepcopy(states)
    for _ in islice(stream, 12):
        states.append(stream.state_dict())
        copies.append(copy.deepcopy(states[-1]))
    assert states == copies
    other = mix.stream()
    other.load_state_dict(states[1 % len(states)])
    list(islice(other, 12))
    assert states == copies


def test_draws_differ_by_epoch_worker_and_seed_and_are_otherwise_the_same():
    mix = RandomMix(["a" * 99, "b" * 99], stop=60)
    places = [{}, {"epoch": 1}, {"worker": 1, "workers": 2}, {"rank": 1, "world_size": 2}, {"seed": 5}]
    orders = ["".join(element for _, element in mix.stream(Context(**place))) for place in places]
    assert len(set(orders)) == 5
    assert orders[0] == "".join(mix)
    assert len({"".join(RandomMix(["a" * 99, "b" * 99], stop=60, seed=seed)) for seed in (None, 1, 2)}) == 3


def test_the_same_dataset_twice_is_shuffled_differently():
    dataset = DataPipeline(range(30)).shuffle(30)
    mixed = list(RoundRobin([dataset, dataset]))
    assert sorted(mixed[::2]) == sorted(mixed[1::2])
    assert mixed[::2] != mixed[1::2]


def test_a_mix_is_a_pipeline_with_all_its_methods():
    mix = RandomMix(["ab", range(2)], longest=True).map(str).batched(2, collation_fn=None)
    assert sorted(element for batch in mix for element in batch) == ["0", "1", "a", "b"]
    first, *stages = repr(mix).split("\n    .")
    assert first == "RandomMix([str, range], stop='all_exhausted_without_replacement')"
    assert stages == ["map(str)", "batched(2, collation_fn=None)"]


def test_the_seed_of_a_part_counts_where_the_mix_has_none():
    def order(seed):
        return list(RoundRobin([DataPipeline(range(30), seed=seed).shuffle(30)]))

    assert order(1) != order(2)


def test_a_part_without_addresses_makes_the_mix_one_that_is_replayed():
    mix = RandomMix([DataPipeline(range(9)).compose(iter), "abc"], longest=True)
    assert not mix.parts[0].parts[0].stages[0].addressable
    first = mix.stream()
    seen = [next(first)[1] for _ in range(5)]
    second = mix.stream()
    with pytest.warns(UserWarning, match="compose.iter. gives elements without addresses"):
        second.load_state_dict(first.state_dict())
    assert seen + [element for _, element in second] == list(mix)


@pytest.mark.parametrize("kind", [RandomMix, RoundRobin])
def test_closing_it_closes_its_datasets(kind):
    closed = []

    class Source(list):
        def close(self):
            closed.append(self)

    class Elements:
        close = Source.close

        def __iter__(self):
            return iter([1])

    with kind([Source([1]), Elements(), DataPipeline(Source([1]))]) as mix:
        list(mix)
    assert len(closed) == 3


class FailsOnce:
    def __init__(self, number):
        self.number = number

    def __call__(self, number):
        if number == self.number:
            self.number = None
            raise ArithmeticError
        return number


@pytest.mark.parametrize("failing", [0, 3, 17])
def test_after_an_error_a_state_begins_with_the_element_that_failed(failing):
    def make(function):
        numbers = DataPipeline(range(30)).map(function)
        return RandomMix([numbers, DataPipeline(range(100, 130))], [2, 1], stop=50, seed=3).stream(Context())

    whole = [element for _, element in make(abs)]
    stream = make(FailsOnce(failing))
    with pytest.raises(ArithmeticError):
        list(stream)
    got = whole[: whole.index(failing)]
    restored = make(abs)
    restored.load_state_dict(stream.state_dict())
    assert got + [element for _, element in restored] == whole


def test_stop_is_any_whole_number_and_no_flag():
    assert len(list(RandomMix([DataPipeline([1]), DataPipeline([2])], stop=np.int64(5)))) == 5
    with pytest.raises(ValueError, match="stop must be a number of elements"):
        RandomMix([DataPipeline([1]), DataPipeline([2])], stop=True)
