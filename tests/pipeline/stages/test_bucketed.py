from bisect import bisect_right

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.handlers import ignore_and_stop
from mpwds.pipeline.stages.batched import bucketed
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


@settings(max_examples=100, deadline=None)
@given(sizes=sizes, stage=stages())
def test_each_element_once_among_those_of_its_bucket_in_order(sizes, stage):
    batches = collect(stage, sizes)
    for bucket in range(len(stage.edges) + 1):
        own = [size for size in sizes if bisect_right(stage.edges, size) == bucket]
        found = [size for batch in batches for size in batch if bisect_right(stage.edges, size) == bucket]
        assert found == own[: len(found)]
        assert len(found) == len(own) or not stage.partial
    assert all(len({bisect_right(stage.edges, size) for size in batch}) == 1 for batch in batches)


@settings(max_examples=100, deadline=None)
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
