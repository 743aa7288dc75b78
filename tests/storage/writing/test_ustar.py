import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpwds.storage.writing.tar_members import ustar_header

names = st.text(st.characters(min_codepoint=1, max_codepoint=126), min_size=1, max_size=120)


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
