import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpwds.pipeline.context import Context
from mpwds.pipeline.handlers import ignore_and_continue, ignore_and_stop
from mpwds.pipeline.stages.batched import Batched, batched
from mpwds.pipeline.stages.collation import Stack, padded
from mpwds.pipeline.stages.map import Map
from mpwds.pipeline.stream import Source, collect


@given(n=st.integers(0, 30), size=st.integers(1, 9), partial=st.booleans(), stop=st.integers(0, 31))
def test_continues_from_its_state_exactly(continues, n, size, partial, stop):
    continues(lambda: Batched(size, partial=partial).stream(Source((k, str(k)) for k in range(n))), stop)


def test_the_address_of_a_batch_is_its_parts_addresses():
    assert next(Batched(2).stream(Source("abc")))[0] == (0, 1)


def test_a_collation_function_that_draws_numbers_draws_the_same_again(continues):
    stage = Batched(3, collation_fn=lambda samples: sum(samples) + random.random())
    continues(lambda: stage.stream(Source(range(10))), 2)


def test_an_error_of_the_collation_names_the_samples():
    with pytest.raises(ValueError, match="different fields") as caught:
        collect(Batched(2), [(1, 2), (1,)])
    assert caught.value.__notes__ == ["in batched(2), on a batch of 2, from element 0 to element 1"]


def test_an_element_that_fails_costs_only_itself_and_comes_again_from_a_state():
    source = Map(lambda n: 6 // n).stream(Source([1, 2, 0, 3, 6]))
    stream = Batched(4, collation_fn=None).stream(source)
    with pytest.raises(ZeroDivisionError):
        next(stream)
    state = stream.state_dict()
    assert [batch for _, batch in stream] == [[6, 3, 2, 1]]
    stream.load_state_dict(state)
    with pytest.raises(ZeroDivisionError):
        next(stream)
    assert [batch for _, batch in stream] == [[6, 3, 2, 1]]


def test_a_batch_that_cannot_be_made_is_left_out_whole_or_ends_the_stream():
    samples = [(1,), (2,), (3,), (4, 4), (5,)]
    for handler, made in ((ignore_and_continue, [[1, 2], [5]]), (ignore_and_stop, [[1, 2]])):
        assert [numbers.tolist() for (numbers,) in collect(Batched(2, handler=handler), samples)] == made


@pytest.mark.parametrize("stage", [Batched(2), batched(max_bytes=999), Batched(2, padded())], ids=str)
def test_arrays_are_left_to_the_transport_when_it_asks_for_that(stage):
    samples = [(np.full(3, k), k) for k in range(2)]
    ((images, labels),) = collect(stage, samples, Context(deferred=True))
    assert isinstance(images, Stack)
    assert labels.tolist() == [0, 1]


def test_a_batch_is_made_by_the_users_function_even_when_deferred():
    (batch,) = collect(Batched(2, collation_fn=np.stack), [np.zeros(3)] * 2, Context(deferred=True))
    assert isinstance(batch, np.ndarray)


def test_all_batches_that_failed_come_again_where_the_state_is_loaded():
    faults = ["out of memory"]

    def collate(elements):
        if faults:
            raise ValueError(*faults)
        return elements

    first, second = (Batched(2, collate).stream(Source(range(5))) for _ in range(2))
    for _ in range(2):
        with pytest.raises(ValueError, match="out of memory"):
            next(first)
    faults.clear()
    second.load_state_dict(first.state_dict())
    assert [batch for _, batch in second] == [[0, 1], [2, 3], [4]]
