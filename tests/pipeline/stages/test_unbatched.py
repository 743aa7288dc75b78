import numpy as np
import pytest
import webdataset.filters
from hypothesis import given
from hypothesis import strategies as st

from mpwds.pipeline.stages.batched import Batched
from mpwds.pipeline.stages.unbatched import Unbatched, unlisted
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
