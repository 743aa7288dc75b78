"""The stages that make several elements of one."""

import random

import numpy as np
import pytest
import webdataset.filters
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.context import Context
from mpwds.pipeline.handlers import ignore_and_continue
from mpwds.pipeline.stages.batched import Batched
from mpwds.pipeline.stages.map import Map
from mpwds.pipeline.stages.shuffle import Shuffle
from mpwds.pipeline.stages.unbatched import Unbatched, flatmap, unlisted
from mpwds.pipeline.stream import Source, collect


@given(sizes=st.lists(st.integers(0, 4), max_size=6), stop=st.integers(0, 25))
def test_continues_in_the_middle_of_a_batch_exactly(continues, sizes, stop):
    batches = [([f"{b}/{row}" for row in range(size)], list(range(size))) for b, size in enumerate(sizes)]
    continues(lambda: Unbatched().stream(Source(batches)), stop)


def test_takes_dicts_and_arrays_apart():
    assert collect(Unbatched(), [{"x": [1, 2], "y": ["a", "b"]}]) == [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]
    assert [row.tolist() for row in collect(Unbatched(), [np.eye(2)])] == [[1, 0], [0, 1]]


def test_rows_of_arrays_are_views():
    batch = np.zeros((2, 3))
    assert all(np.shares_memory(row, batch) for row in collect(Unbatched(), [batch]))


def test_the_batch_that_rows_are_fetched_from_is_made_once():
    made = []
    batched = Batched(4, collation_fn=lambda samples: made.append(1) or (samples,))
    stream = Unbatched().stream(batched.stream(Source("abcd")))
    assert [stream.fetch(((0, 1, 2, 3), row)) for row in (2, 0, 3)] == [("c",), ("a",), ("d",)]
    assert len(made) == 1


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        *(
            (rows, TypeError, "a column must be a list or an array, got a ")
            for rows in (["ab", "cd"], [b"ab", b"cd"], [{"x": 1}, {"x": 2}], [{1}, {2}])
        ),
        (([1, 2], [3]), ValueError, "the columns differ in length: 2, 1"),
    ],
)
def test_what_is_no_list_of_equal_columns_is_an_error(batch, error, message):
    with pytest.raises(error, match=message) as caught:
        collect(Unbatched(), [batch])
    assert caught.value.__notes__ == ["in unbatched(), on element 0"]


@given(
    sizes=st.lists(st.integers(0, 4), max_size=5),
    kind=st.sampled_from([tuple, list, lambda columns: dict(enumerate(columns))]),
)
def test_takes_batches_apart_as_webdataset_does(sizes, kind):
    batches = [kind([list(range(size)), [str(row) for row in range(size)]]) for size in sizes]
    assert collect(Unbatched(), batches) == list(webdataset.filters.unbatched()(batches))


@given(lists=st.lists(st.lists(st.integers(), max_size=4), max_size=5))
def test_takes_lists_apart_as_webdataset_does(lists):
    assert collect(unlisted(), lists) == list(webdataset.filters.unlisted()(lists))


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
