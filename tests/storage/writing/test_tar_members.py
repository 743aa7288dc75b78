"""Members of archives: tarfile's headers, and names that webdataset reads back as they were."""

import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext

from mpwds.storage.writing.tar_members import check_key, file_name, ustar_header

names = st.text(st.characters(min_codepoint=1, max_codepoint=126), min_size=1, max_size=120)


@settings(max_examples=50)
@given(
    name=names,
    size=st.integers(0, 8**11 - 1),
    mtime=st.integers(0, 8**11 - 1),
    mode=st.integers(0, 0o7777),
    user=st.text(max_size=8),
)
def test_a_header_is_tarfiles(name, size, mtime, mode, user):
    header = ustar_header(name, size, mtime, mode, user, "group")
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode, info.uname, info.gname = size, mtime, mode, user, "group"
    if len(name) > tarfile.LENGTH_NAME:
        assert header is None
    else:
        assert header == info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")


@pytest.mark.parametrize(("name", "size"), [("é", 1), ("a" * 101, 1), ("a", 8**11), ("a", -1)])
def test_what_plain_fields_cannot_hold_is_left_to_tarfile(name, size):
    assert ustar_header(name, size, 0, 0o444, "", "") is None


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
