import pytest
import webdataset.filters
from hypothesis import given
from hypothesis import strategies as st

from mpwds.pipeline.stages.fields import alternatives, getfirst, parse_field_spec

names = st.sampled_from(["png", "jpg", "cls", "__key__"])
samples = st.dictionaries(names, st.none() | st.integers(), max_size=4)


@given(sample=samples, keys=st.lists(names, min_size=1, max_size=3))
def test_finds_what_webdataset_finds(sample, keys):
    for spec in (keys, ";".join(keys)):
        ours = getfirst(sample, spec, "default", missing_is_error=False)
        assert ours == webdataset.filters.getfirst(sample, spec, "default", missing_is_error=False)


@given(fields=st.lists(st.lists(names, min_size=1, max_size=3).map(";".join), min_size=1, max_size=3))
def test_reads_specs_as_webdataset_does(fields):
    for spec in (fields, " ".join(fields)):
        assert parse_field_spec(spec) == webdataset.filters.parse_field_spec(spec)


def test_a_missing_field_is_an_error_that_lists_those_that_are_there():
    with pytest.raises(ValueError, match="no field 'png' or 'jpg'; the sample has __key__, cls"):
        getfirst({"__key__": "a", "cls": 1}, "png;jpg")


@pytest.mark.parametrize(
    ("spec", "error"),
    [(3, TypeError), ([3], TypeError), ("png cls", ValueError), (";", ValueError), ([], ValueError)],
)
def test_what_names_no_field_is_refused(spec, error):
    with pytest.raises(error):
        alternatives(spec)
