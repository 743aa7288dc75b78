"""Names: what is accepted is read back by webdataset as it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext

from mpwds.storage.writing.tar_members import check_key, file_name

text = st.text(st.sampled_from("ab./_\n\0é"), max_size=8)


@given(key=text, field=text)
def test_an_accepted_name_is_read_back_as_key_and_field(key, field):
    try:
        name = file_name(check_key(key), field)
    except ValueError:
        return
    assert base_plus_ext(name) == (key, field)


@given(key=text, field=st.just("png"))
def test_every_key_that_is_read_back_is_accepted(key, field):
    read_back = base_plus_ext(f"{key}.{field}") == (key, field)
    if read_back and "\0" not in key and not key.startswith("__"):
        assert check_key(key) == key


@pytest.mark.parametrize("key", [7, None, b"a", "", ".a", "a.b", "x/a.b", "a\0"])
def test_other_keys_are_refused(key):
    with pytest.raises(ValueError, match="sample key"):
        check_key(key)


@pytest.mark.parametrize(
    ("key", "field"), [("a", ""), ("a", "b/c"), ("a", 7), ("__a__/b", "png"), ("__a", "b__")]
)
def test_other_fields_are_refused(key, field):
    with pytest.raises(ValueError, match=r"field name|skipped by readers"):
        file_name(key, field)
