import pytest
import webdataset.filters
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.stages.fields import Rename, rename
from mpwds.pipeline.stream import Source, collect

SAMPLE = {"__key__": "a", "jpg": b"..", "cls": 7}

names = st.sampled_from(["png", "jpg", "cls", "txt", "__key__"])
specs = st.dictionaries(names, st.lists(names, min_size=1, max_size=2), max_size=3)
samples = st.lists(st.dictionaries(names, st.integers(), max_size=5), max_size=5)


@settings(max_examples=60, deadline=None)
@given(elements=samples, fields=specs, keep=st.booleans(), as_text=st.booleans())
def test_renames_as_webdataset_does(elements, fields, keep, as_text):
    fields = {new: ";".join(old) if as_text else old for new, old in fields.items()}
    theirs = webdataset.filters.rename(handler=lambda error: True, keep=keep, **fields)
    ours = rename(handler=lambda error: True, keep=keep, **fields)
    assert list(ours(elements)) == list(theirs(elements))


@settings(max_examples=30, deadline=None)
@given(elements=samples, fields=specs, stop=st.integers(0, 5))
def test_continues_from_its_state_exactly(continues, elements, fields, stop):
    stage = rename(handler=lambda error: True, **fields)
    continues(lambda: stage.stream(Source(elements)), stop)


def test_the_first_of_several_alternatives_is_taken_and_the_others_go():
    assert collect(rename(image="jpg;png"), [{"png": 1, "jpg": 2, "x": 3}]) == [{"x": 3, "image": 2}]


def test_two_fields_can_change_their_names():
    assert collect(rename(a="b", b="a"), [{"a": 1, "b": 2}]) == [{"a": 2, "b": 1}]


def test_the_sample_itself_stays_as_it_is():
    sample = dict(SAMPLE)
    collect(rename(image="jpg"), [sample])
    assert sample == SAMPLE


def test_a_missing_field_is_an_error_that_lists_those_that_are_there():
    with pytest.raises(ValueError, match="no field .png.; the sample has __key__, jpg, cls") as caught:
        collect(rename(image="png"), [SAMPLE])
    assert caught.value.__notes__ == ["in rename(image='png'), on sample \"a\""]


@pytest.mark.parametrize(("old", "error"), [("png jpg", ValueError), ("", ValueError), (3, TypeError)])
def test_what_names_no_field_is_refused(old, error):
    with pytest.raises(error):
        rename(image=old)


def test_a_sample_that_is_no_dict_is_an_error():
    with pytest.raises(TypeError, match="rename needs dict samples, got a tuple"):
        collect(Rename({"a": "b"}), [(1, 2)])
