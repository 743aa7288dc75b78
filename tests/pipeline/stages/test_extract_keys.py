import pytest
import webdataset.filters
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.stages.keys import extract_keys
from mpwds.pipeline.stream import Source, collect

names = st.sampled_from(["png", "left.png", "x/RIGHT.PNG", "cls", "__key__", "a"])
samples = st.lists(st.dictionaries(names, st.integers(), max_size=5), max_size=4)
patterns = st.lists(
    st.sampled_from(["*.png", ".png", "png", "*", "cls;a", "[ab]", "x/*", ".nothing"]), max_size=3
)


def one_by_one(stage, samples):
    """What becomes of each sample; webdataset's has no handler."""
    made = []
    for sample in samples:
        try:
            made += list(stage([sample]))
        except ValueError:
            made.append("an error")
    return made


@settings(max_examples=100, deadline=None)
@given(elements=samples, patterns=patterns, duplicate=st.booleans(), ignore=st.booleans())
def test_extracts_what_webdataset_does(elements, patterns, duplicate, ignore):
    options = {"duplicate_is_error": duplicate, "ignore_missing": ignore}
    theirs = webdataset.filters.extract_keys(*patterns, **options)
    assert one_by_one(extract_keys(*patterns, **options), elements) == one_by_one(theirs, elements)


@settings(max_examples=30, deadline=None)
@given(elements=samples, patterns=patterns, stop=st.integers(0, 5))
def test_continues_from_its_state_exactly(continues, elements, patterns, stop):
    stage = extract_keys(*patterns, handler=lambda error: True)
    continues(lambda: stage.stream(Source(elements)), stop)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("*.gif;gif", "extract_keys: no field matches '\\*.gif' or 'gif'; the sample has a.png, b.png"),
        ("*.png", "extract_keys: '\\*.png' matches a.png and b.png"),
    ],
)
def test_what_does_not_fit_is_an_error_that_says_what_is_there(pattern, message):
    with pytest.raises(ValueError, match=message):
        collect(extract_keys(pattern), [{"a.png": 1, "b.png": 2}])


def test_what_is_no_pattern_is_refused():
    with pytest.raises(TypeError, match="expected a field name"):
        extract_keys(3)
