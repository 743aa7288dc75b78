import pytest
import webdataset.filters
from hypothesis import given
from hypothesis import strategies as st

from mpwds.pipeline.stages.fields import (
    extract_keys,
    getfirst,
    parse_field_spec,
    rename,
    rename_keys,
    to_tuple,
)
from mpwds.pipeline.stream import collect

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


SAMPLE = {"__key__": "a", "jpg": b"..", "cls": 7, "json": None}


@pytest.mark.parametrize(
    ("stage", "sample", "made"),
    [
        (to_tuple("cls", "__key__"), SAMPLE, (7, "a")),
        (to_tuple("cls"), SAMPLE, (7,)),
        (to_tuple("png;jpg cls"), SAMPLE, (b"..", 7)),
        (to_tuple("json", none_is_error=False), SAMPLE, (None,)),
        (to_tuple("png", "cls", missing_is_error=False), SAMPLE, (None, 7)),
    ],
    ids=[
        "fields come in the order asked for",
        "a single field makes a tuple of one",
        "spaces separate fields and semicolons alternatives",
        "a field that is None is allowed on request",
        "a missing field becomes None on request",
    ],
)
def test_fields_are_picked(stage, sample, made):
    assert collect(stage, [sample]) == [made]


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (to_tuple("json"), "to_tuple: field 'json' is None"),
        (to_tuple("png;webp"), "to_tuple: no field 'png' or 'webp'; the sample has __key__, jpg, cls, json"),
        (rename(image="png"), "rename: no field 'png'; the sample has __key__, jpg, cls, json"),
    ],
)
def test_a_field_that_is_none_or_missing_is_an_error(stage, message):
    with pytest.raises(ValueError, match=message):
        collect(stage, [SAMPLE])


old_names = st.sampled_from(["png", "jpg", "cls", "txt", "__key__"])

renamings = st.dictionaries(old_names, st.lists(old_names, min_size=1, max_size=2), max_size=3)

many_samples = st.lists(st.dictionaries(old_names, st.integers(), max_size=5), max_size=5)


@given(elements=many_samples, fields=renamings, keep=st.booleans(), as_text=st.booleans())
def test_renames_as_webdataset_does(elements, fields, keep, as_text):
    fields = {new: ";".join(old) if as_text else old for new, old in fields.items()}
    theirs = webdataset.filters.rename(handler=lambda error: True, keep=keep, **fields)
    ours = rename(handler=lambda error: True, keep=keep, **fields)
    assert list(ours(elements)) == list(theirs(elements))


key_names = st.sampled_from(["png", "left.png", "x/RIGHT.PNG", "cls", "__key__", "a"])

keyed_samples = st.lists(st.dictionaries(key_names, st.integers(), max_size=5), max_size=4)

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


@given(elements=keyed_samples, patterns=patterns, duplicate=st.booleans(), ignore=st.booleans())
def test_extracts_what_webdataset_does(elements, patterns, duplicate, ignore):
    options = {"duplicate_is_error": duplicate, "ignore_missing": ignore}
    theirs = webdataset.filters.extract_keys(*patterns, **options)
    assert one_by_one(extract_keys(*patterns, **options), elements) == one_by_one(theirs, elements)


single_patterns = st.sampled_from(["*.png", "png", "*", "cls", "[ab]", "right.*"])

pairs = st.lists(st.tuples(st.sampled_from(["image", "cls", "b"]), single_patterns), max_size=3)

flags = st.fixed_dictionaries(
    dict.fromkeys(["keep_unselected", "must_match", "duplicate_is_error"], st.booleans())
)


@given(elements=keyed_samples, renamings=pairs, options=flags)
def test_rekey_names_as_webdataset_does(elements, renamings, options):
    theirs = webdataset.filters.rename_keys(*renamings, **options)
    assert one_by_one(rename_keys(*renamings, **options), elements) == one_by_one(theirs, elements)


def test_names_are_given_as_pairs_or_as_arguments():
    pairs = rename_keys(["image", "*.png"], ("label", "cls"))
    assert str(rename_keys(("image", "*.png"), label="cls")) == str(pairs)
