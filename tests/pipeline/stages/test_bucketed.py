"""Batches of a limited size, and of elements of similar size."""

import random
from bisect import bisect_right
from itertools import pairwise
from math import inf

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.handlers import ignore_and_stop
from mpwds.pipeline.stages.batched import batched, bucketed, size_in_bytes
from mpwds.pipeline.stream import Source, collect

pytestmark = pytest.mark.filterwarnings("ignore:.*above the limit")

sizes = st.lists(st.integers(0, 9), max_size=30)


def itself(size):
    return size


@st.composite
def stages(draw):
    edges = sorted(draw(st.sets(st.integers(1, 8), max_size=3)))
    batchsize = draw(
        st.none()
        | st.integers(1, 4)
        | st.lists(st.integers(1, 4), min_size=len(edges) + 1, max_size=len(edges) + 1)
    )
    max_total = draw(st.integers(1, 20)) if batchsize is None else draw(st.none() | st.integers(1, 20))
    padding = max_total is not None and draw(st.booleans())
    return bucketed(
        itself, edges, batchsize, None, draw(st.booleans()), max_total=max_total, include_padding=padding
    )


def cost(batch, stage):
    return max(batch) * len(batch) if stage.include_padding else sum(batch)


@settings(max_examples=200)
@given(sizes=sizes, stage=stages())
def test_each_bucket_gives_its_elements_once_in_order_in_batches_that_end_at_the_limits(sizes, stage):
    batches = collect(stage, sizes)
    most_total = inf if stage.max_total is None else stage.max_total
    for bucket, batchsize in enumerate(stage.batchsizes()):
        own = [size for size in sizes if bisect_right(stage.edges, size) == bucket]
        made = [batch for batch in batches if bisect_right(stage.edges, batch[0]) == bucket]
        found = [size for batch in made for size in batch]
        assert found == own[: len(found)]
        assert len(found) == len(own) or not stage.partial
        for batch in made:
            assert len(batch) == 1 or cost(batch, stage) <= most_total
            assert batchsize is None or len(batch) <= batchsize
        for batch, following in pairwise(made):
            full = len(batch) == batchsize or cost(batch, stage) >= most_total
            assert full or cost([*batch, following[0]], stage) > most_total


@given(sizes=sizes, stage=stages(), stop=st.integers(0, 31))
def test_continues_from_its_state_exactly(continues, sizes, stage, stop):
    continues(lambda: stage.stream(Source(sizes)), stop)


def of_lists(*arguments, **options):
    return bucketed(itself, *arguments, collation_fn=None, **options)


@pytest.mark.parametrize(
    ("stage", "sizes", "batches"),
    [
        (of_lists([3, 5], 2), [2, 3, 2, 4, 5, 9], [[2, 2], [3, 4], [5, 9]]),
        (of_lists([3], [3, 1]), [1, 9, 1, 1, 8], [[9], [1, 1, 1], [8]]),
        (of_lists([3], 2), [9, 1], [[1], [9]]),
        (of_lists([3], 2, partial=False), [9, 1], []),
        (of_lists([5], partial=False, max_total=4), [3, 4, 1], [[3], [4]]),
        (of_lists([]), [1] * 25, [[1] * 20, [1] * 5]),
        (of_lists([], max_total=24), [1] * 25, [[1] * 24, [1]]),
        (of_lists([], max_total=2), [1, 2, 0], [[1], [2], [0]]),
    ],
    ids=[
        "an edge belongs to the bucket above it",
        "each bucket may have its own batch size",
        "what remains follows, the small ones first",
        "what remains is dropped",
        "a complete batch is not dropped with what remains",
        "twenty elements",
        "unless a limit says otherwise",
        "a batch that is full takes no further element, also if it followed at once upon another",
    ],
)
def test_batches_are_of(stage, sizes, batches):
    assert collect(stage, sizes) == batches


def test_arrays_of_different_lengths_are_padded_by_default():
    arrays = [(np.arange(1, length + 1), length) for length in (2, 9, 1, 8)]
    short, long = DataPipeline(arrays).bucketed(lambda pair: pair[1], [5], 2)
    assert short[0].tolist() == [[1, 2], [1, 0]]
    assert [array.shape for array in (*short, *long)] == [(2, 2), (2,), (2, 9), (2,)]
    (batch,) = bucketed(lambda pair: pair[1], [], 4)(arrays)
    assert batch[0].shape == (4, 9)


def test_a_handler_that_stops_lets_no_later_batch_through():
    def without_the_first(elements):
        return elements if 1 not in elements else 1 // 0

    stage = bucketed(itself, [5], 2, without_the_first, handler=ignore_and_stop)
    stream = stage.stream(Source([1, 7, 2]))
    assert [list(stream), list(stream)] == [[], []]


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


def test_a_batch_that_failed_comes_again_before_the_element_that_did_not_fit_into_it():
    faults = ["out of memory"]

    def collate(sizes):
        if faults:
            raise ValueError(faults.pop())
        return sizes

    stage = batched(by=itself, max_total=5, collation_fn=collate)
    first, second = (stage.stream(Source([3, 1, 4, 2])) for _ in range(2))
    with pytest.raises(ValueError, match="out of memory"):
        next(first)
    second.load_state_dict(first.state_dict())
    assert [batch for _, batch in second] == [[3, 1], [4], [2]]


def test_what_is_held_follows_when_a_bad_element_ends_the_stream():
    stage = batched(by=lambda n: 1 / n, max_total=9, collation_fn=None, handler=ignore_and_stop)
    assert collect(stage, [1, 1, 0, 1]) == [[1, 1]]


@pytest.mark.parametrize("size", [None, -1, float("nan"), "3"])
def test_what_is_no_size_is_an_error_that_names_the_element(size):
    with pytest.raises(ValueError, match="an element's size must be a number") as caught:
        collect(batched(by=lambda element: size, max_total=3), [1])
    assert caught.value.incident.place == "element 0"
