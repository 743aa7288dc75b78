import pytest
import webdataset.filters
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.stages.batched import listed
from mpwds.pipeline.stages.unbatched import Unlisted, unlisted
from mpwds.pipeline.stream import Source, collect

lists = st.lists(st.lists(st.integers(), max_size=4), max_size=5)


@settings(max_examples=60, deadline=None)
@given(lists=lists)
def test_takes_lists_apart_as_webdataset_does(lists):
    assert collect(unlisted(), lists) == list(webdataset.filters.unlisted()(lists))


@settings(max_examples=60, deadline=None)
@given(lists=lists, stop=st.integers(0, 21))
def test_continues_in_the_middle_of_a_list_exactly(continues, lists, stop):
    continues(lambda: unlisted().stream(Source(lists)), stop)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(0, 20), size=st.integers(1, 6))
def test_undoes_listed(n, size):
    stream = unlisted().stream(listed(size).stream(Source(range(n))))
    assert [element for _, element in stream] == list(range(n))


@settings(max_examples=30, deadline=None)
@given(n=st.integers(0, 20), size=st.integers(1, 6))
def test_listed_gives_the_lists_that_webdataset_does(n, size):
    assert collect(listed(size), range(n)) == list(
        webdataset.filters.batched(size, collation_fn=None)(range(n))
    )


def test_listed_drops_a_shorter_last_list_on_request():
    assert collect(listed(2, partial=False), "abc") == [["a", "b"]]


def test_what_is_no_list_is_an_error():
    with pytest.raises(TypeError, match="unlisted needs lists of samples, got a dict"):
        collect(Unlisted(), [{"a": [1]}])
