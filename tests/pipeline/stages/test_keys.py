import webdataset.filters
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.stages.fields import extract_keys, rename_keys

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


single_patterns = st.sampled_from(["*.png", "png", "*", "cls", "[ab]", "right.*"])

pairs = st.lists(st.tuples(st.sampled_from(["image", "cls", "b"]), single_patterns), max_size=3)

flags = st.fixed_dictionaries(
    dict.fromkeys(["keep_unselected", "must_match", "duplicate_is_error"], st.booleans())
)


@settings(max_examples=100, deadline=None)
@given(elements=samples, renamings=pairs, options=flags)
def test_renames_as_webdataset_does(elements, renamings, options):
    theirs = webdataset.filters.rename_keys(*renamings, **options)
    assert one_by_one(rename_keys(*renamings, **options), elements) == one_by_one(theirs, elements)


def test_names_are_given_as_pairs_or_as_arguments():
    pairs = rename_keys(["image", "*.png"], ("label", "cls"))
    assert str(rename_keys(("image", "*.png"), label="cls")) == str(pairs)
