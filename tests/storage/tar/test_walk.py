"""Finding members by their headers: the same as Python's tarfile finds, with nothing between them."""

import io
import tarfile
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpwds.errors import ShardError
from mpwds.storage.streams.gopen import open_at
from mpwds.storage.tar.entries import MAX_DECOMPRESSED_BYTES
from mpwds.storage.tar.header import ZERO_BLOCK
from mpwds.storage.tar.input import open_archive
from mpwds.storage.tar.streams import StreamInput
from mpwds.storage.tar.walk import walk

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
names = st.from_regex(r"[a-zé][a-z0-9_./é]{0,200}[a-z]", fullmatch=True).filter(lambda name: "//" not in name)
contents = st.one_of(st.none(), st.binary(max_size=20), st.integers(500, 70_000).map(bytes))


def archive_of(members, archive_format=tarfile.PAX_FORMAT):
    """An archive of names and contents; those without one are directories."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=archive_format) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.mtime = 1.5 if archive_format == tarfile.PAX_FORMAT else 1
            info.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            info.size = len(content or b"")
            archive.addfile(info, io.BytesIO(content or b""))
    return stream.getvalue()


def places_in(path):
    with closing(open_archive(str(path), 0, open_at, MAX_DECOMPRESSED_BYTES)) as source:
        return list(walk(source))


@given(
    members=st.lists(st.tuples(names, contents), max_size=8).filter(
        lambda members: all(len(name) < 100 for name, _ in members)
    ),
    archive_format=st.sampled_from(FORMATS),
)
def test_finds_what_tarfile_finds(tmp_path_factory, members, archive_format):
    data = archive_of(members, archive_format)
    path = tmp_path_factory.mktemp("walk") / "x.tar"
    path.write_bytes(data)
    places = places_in(path)
    assert [place.name for place in places] == [None if c is None else name for name, c in members]
    assert [data[p.data : p.data + p.size] for p in places] == [content or b"" for _, content in members]
    ends = [0, *(place.stop for place in places)]
    assert [place.start for place in places] == ends[:-1]
    assert not any(data[ends[-1] :])


@pytest.mark.parametrize("archive_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_are_whole(tmp_path, archive_format):
    name = "directory/" * 30 + "é.txt"
    (tmp_path / "x.tar").write_bytes(archive_of([(name, b"x")], archive_format))
    assert [place.name for place in places_in(tmp_path / "x.tar")] == [name]


@pytest.mark.filterwarnings("ignore:.*without the end-of-archive blocks")
def test_an_archive_cut_off_anywhere_in_its_members_is_an_error(tmp_path):
    data = archive_of([("a.txt", bytes(700)), ("b/" * 80 + "c.txt", b"x")])
    stops = {0} | {place.stop for place in places_in(_written(tmp_path, data))}
    for length in range(1, max(stops), 100):
        path = _written(tmp_path, data[:length])
        if length in stops:
            places_in(path)
        else:
            with pytest.raises(ShardError, match=r"x\.tar"):
                places_in(path)


def test_bytes_behind_the_end_are_an_error(tmp_path):
    with pytest.raises(ShardError, match="follow the end of the archive"):
        places_in(_written(tmp_path, archive_of([("a.txt", b"x")]) + b"x" * 512))


def test_several_archives_in_a_row_are_one(tmp_path):
    data = archive_of([("a.txt", b"x")]) + archive_of([("b.txt", b"y")])
    assert [place.name for place in places_in(_written(tmp_path, data))] == ["a.txt", "b.txt"]


def test_a_missing_end_is_a_warning(tmp_path):
    data = archive_of([("a.txt", b"x")]).rstrip(b"\0")
    with pytest.warns(RuntimeWarning, match="may be truncated"):
        places_in(_written(tmp_path, data + bytes(-len(data) % 512)))


def test_a_global_header_that_says_more_than_a_comment_is_an_error(tmp_path):
    def archive(**records):
        header = tarfile.TarInfo.create_pax_global_header(records)
        return header + archive_of([("a.txt", b"x")], tarfile.USTAR_FORMAT)

    assert len(places_in(_written(tmp_path, archive(comment="of git archive")))) == 1
    with pytest.raises(ShardError, match="global pax header at offset 0"):
        places_in(_written(tmp_path, archive(mtime="1")))


def test_of_a_stream_it_needs_only_headers():
    data = archive_of([("a.txt", bytes(3000)), ("b.txt", b"x")])
    places = list(walk(StreamInput(io.BytesIO(data), "x.tar", 0)))
    assert [place.name for place in places] == ["a.txt", "b.txt"]
    assert data[places[-1].stop :].startswith(ZERO_BLOCK)


def _written(directory, data):
    path = directory / "x.tar"
    path.write_bytes(data)
    return path
