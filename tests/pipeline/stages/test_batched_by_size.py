import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.handlers import ignore_and_stop
from mpwds.pipeline.stages.batched import batched, size_in_bytes
from mpwds.pipeline.stream import Source, collect

pytestmark = pytest.mark.filterwarnings("ignore:.*above the limit")

sizes = st.lists(st.integers(0, 9), max_size=20)


def itself(size):
    return size


@st.composite
def stages(draw):
    return batched(
        draw(st.none() | st.integers(1, 4)),
        None,
        draw(st.booleans()),
        by=itself,
        max_total=draw(st.integers(1, 12)),
        include_padding=draw(st.booleans()),
    )


def cost(batch, stage):
    return max(batch) * len(batch) if stage.include_padding else sum(batch)


@settings(max_examples=100, deadline=None)
@given(sizes=sizes, stage=stages())
def test_each_element_once_in_order_within_the_limits(sizes, stage):
    batches = collect(stage, sizes)
    flat = [size for batch in batches for size in batch]
    assert flat == sizes[: len(flat)]
    assert len(flat) == len(sizes) or not stage.partial
    for batch in batches:
        assert cost(batch, stage) <= stage.max_total or len(batch) == 1
        assert stage.batchsize is None or len(batch) <= stage.batchsize


@settings(max_examples=100, deadline=None)
@given(sizes=sizes, stage=stages())
def test_a_batch_ends_only_where_the_next_element_does_not_fit(sizes, stage):
    batches = collect(stage, sizes)
    for batch, following in pairwise(batches):
        full = len(batch) == stage.batchsize or cost(batch, stage) >= stage.max_total
        assert full or cost([*batch, following[0]], stage) > stage.max_total


def test_a_measure_that_draws_numbers_draws_the_same_again(continues):
    stage = batched(by=lambda element: random.random(), max_total=1.5, collation_fn=None)
    for stop in range(5):
        continues(lambda: stage.stream(Source(range(12))), stop)


def test_padding_counts_on_request():
    elements = ["a" * n for n in (10, 1, 1, 10)]
    assert [len(batch) for batch in batched(by=len, max_total=15, collation_fn=None)(elements)] == [3, 1]
    padded = batched(by=len, max_total=15, collation_fn=None, include_padding=True)
    assert [len(batch) for batch in padded(elements)] == [1, 2, 1]


def test_an_element_above_the_limit_is_a_batch_by_itself_with_one_warning():
    stage = batched(by=len, max_total=2, collation_fn=None)
    with pytest.warns(UserWarning, match=r"element 1 has a size of 3, above the limit of 2") as caught:
        assert collect(stage, ["a", "bcd", "e", "fghi"]) == [["a"], ["bcd"], ["e"], ["fghi"]]
    assert len(caught) == 1


def test_a_complete_batch_does_not_wait_for_the_next_element():
    source = Source([2, 2, 1])
    stream = batched(by=itself, max_total=4, collation_fn=None).stream(source)
    assert next(stream)[1] == [2, 2]
    assert source.state_dict() == {"cursor": 2}


def test_batches_hold_up_to_so_many_bytes():
    samples = [{"__key__": str(n), "x": np.zeros(10, np.uint8)} for n in range(5)]
    batches = list(batched(max_bytes=25)(samples))
    assert [batch["__key__"] for batch in batches] == [["0", "1"], ["2", "3"], ["4"]]


@pytest.mark.parametrize(
    ("element", "size"),
    [
        (np.zeros((2, 3), np.int16), 12),
        (torch.zeros(4, dtype=torch.float64), 32),
        (np.float32(1), 4),
        (b"abc", 3),
        (memoryview(b"abc"), 3),
        ({"a": b"abc", "b": ["x", (b"yz",)]}, 6),
    ],
)
def test_bytes_are_those_of_the_data(element, size):
    assert size_in_bytes(element) == size


def test_what_is_held_follows_when_a_bad_element_ends_the_stream():
    stage = batched(by=lambda n: 1 / n, max_total=9, collation_fn=None, handler=ignore_and_stop)
    assert collect(stage, [1, 1, 0, 1]) == [[1, 1]]


@pytest.mark.parametrize("size", [None, -1, float("nan"), "3"])
def test_what_is_no_size_is_an_error_that_names_the_element(size):
    with pytest.raises(ValueError, match="an element's size must be a number") as caught:
        collect(batched(by=lambda element: size, max_total=3), [1])
    assert caught.value.incident.place == "element 0"
