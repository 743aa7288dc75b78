import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.context import Context
from mpwds.pipeline.handlers import ignore_and_continue
from mpwds.pipeline.stages.batched import Batched
from mpwds.pipeline.stages.map import Map
from mpwds.pipeline.stages.shuffle import Shuffle
from mpwds.pipeline.stages.unbatched import flatmap
from mpwds.pipeline.stream import Source, collect


def noisy_range(n):
    for k in range(n):
        yield n, k, random.random(), float(np.random.random())


def noisy_list(n):
    return [(n, k, random.random()) for k in range(n)]


sizes = st.lists(st.integers(0, 4), max_size=6)
functions = st.sampled_from([noisy_range, noisy_list, range, lambda n: None])


@given(sizes=sizes, function=functions, stop=st.integers(0, 25))
def test_continues_in_the_middle_of_an_element_exactly(continues, sizes, function, stop):
    continues(lambda: flatmap(function).stream(Source(sizes)), stop)


@settings(max_examples=30)
@given(sizes=sizes, stop=st.integers(0, 25))
def test_its_addresses_can_be_shuffled_and_batched(continues, sizes, stop):
    def make():
        parts = flatmap(noisy_range).stream(Source(sizes))
        return Batched(3, None).stream(Shuffle(5).stream(parts))

    continues(make, stop)


def test_an_address_is_that_of_the_element_and_an_index():
    assert [address for address, _ in flatmap(range).stream(Source([2, 0, 1]))] == [(0, 0), (0, 1), (2, 0)]


def test_every_part_and_every_epoch_has_its_own_random_numbers():
    numbers = [
        part[2] for epoch in (0, 1) for part in collect(flatmap(noisy_range), [3, 3], Context(epoch=epoch))
    ]
    assert len(set(numbers)) == 12


@pytest.mark.parametrize("owns_process", [False, True])
def test_what_is_drawn_between_two_parts_changes_nothing(owns_process):
    def run(draw):
        stream = flatmap(noisy_range).stream(Source([4]), Context(owns_process=owns_process))
        return [(draw(), element)[1] for _, element in stream]

    assert run(random.random) == run(int)


def test_a_generator_is_run_only_as_far_as_it_is_asked():
    begun = []

    def parts(n):
        for k in range(n):
            begun.append(k)
            yield k

    stream = flatmap(parts).stream(Source([1000]))
    assert [next(stream)[1] for _ in range(3)] == begun == [0, 1, 2]


def test_parts_that_are_fetched_in_order_are_made_by_one_call():
    calls = []

    def parts(n):
        calls.append(n)
        yield from range(n)

    stream = flatmap(parts).stream(Source([9, 9]))
    assert [stream.fetch((0, index)) for index in (1, 4, 8)] == [1, 4, 8]
    assert len(calls) == 1
    assert stream.fetch((0, 3)) == 3


def test_a_part_that_is_not_there_cannot_be_fetched():
    with pytest.raises(LookupError, match=r"in flatmap\(range\): there is no part 2 of element 0"):
        flatmap(range).stream(Source([2])).fetch((0, 2))


def test_a_dict_made_from_a_sample_gets_its_key_even_when_that_is_taken_out():
    def parts(sample):
        sample.pop("__key__")
        yield {"cls": 1}
        yield {"__key__": "b"}
        yield 3

    assert collect(flatmap(parts), [{"__key__": "a"}]) == [{"__key__": "a", "cls": 1}, {"__key__": "b"}, 3]


def test_an_error_costs_the_rest_of_its_element_only():
    def parts(n):
        yield n
        yield 1 / n

    assert collect(flatmap(parts, ignore_and_continue), [1, 0, 2]) == [1, 1.0, 0, 2, 0.5]
    stream = flatmap(parts).stream(Source([0, 2]))
    next(stream)
    with pytest.raises(ZeroDivisionError) as caught:
        next(stream)
    assert caught.value.__notes__ == ["in flatmap(parts), on element 0"]
    assert [element for _, element in stream] == [2, 0.5]


def test_an_error_in_a_later_stage_names_the_part():
    stream = Map(lambda n: 1 / n).stream(flatmap(range).stream(Source([2])))
    with pytest.raises(ZeroDivisionError) as caught:
        next(stream)
    assert caught.value.__notes__ == ["in map(<lambda>), on part 0 of element 0"]
