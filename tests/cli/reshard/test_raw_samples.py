"""Samples are found as they lie in an archive: nothing of it is lost, and nothing is changed."""

import contextlib
import io
import itertools
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.cli.reshard.raw_samples import OpenFiles, read_raw_samples
from mpwds.errors import ShardError

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
keys = st.from_regex(r"[a-z]{1,3}(/[a-zé]{1,60}){0,2}", fullmatch=True)
extensions = st.sampled_from(["jpg", "cls", "seg.png", "JSON"])
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


def samples_in(*urls, fields=()):
    with OpenFiles() as files:
        return [
            (sample.key, bytes(sample.read()), sample.fields)
            for sample in read_raw_samples(map(str, urls), files, fields)
        ]


@pytest.fixture
def written():
    def written(data):
        Path("x.tar").write_bytes(data)
        return Path("x.tar")

    return written


@settings(max_examples=40)
@given(
    members=st.lists(st.tuples(keys, extensions, contents), min_size=1, max_size=8),
    archive_format=st.sampled_from(FORMATS),
)
def test_the_samples_are_the_archive(tmp_path_factory, members, archive_format):
    members = [(f"{key}.{extension}", content) for key, extension, content in members]
    members.append(("z.txt", b"so there is a sample"))
    data = archive_of(members, archive_format)
    path = tmp_path_factory.mktemp("raw") / "x.tar"
    path.write_bytes(data)
    found = samples_in(path)
    all_bytes = b"".join(sample for _, sample, _ in found)
    assert data.startswith(all_bytes)
    assert not any(data[len(all_bytes) :])
    assert all(one[0] != other[0] for one, other in itertools.pairwise(found))
    assert samples_in(f"pipe:cat {path}") == found


@settings(max_examples=25)
@given(members=st.lists(st.tuples(keys, extensions, contents), min_size=1, max_size=6), data=st.data())
@pytest.mark.filterwarnings("ignore:.*belong to no sample", "ignore:.*without the end-of-archive blocks")
def test_damage_ends_the_samples_of_a_file_where_it_ends_those_of_a_pipe(tmp_path_factory, members, data):
    archive = bytearray(archive_of([(f"{key}.{extension}", content) for key, extension, content in members]))
    not_padding = [place for place, byte in enumerate(archive) if byte]
    place = data.draw(st.sampled_from(not_padding))
    archive[place] ^= 0x10
    path = tmp_path_factory.mktemp("raw") / "x.tar"
    path.write_bytes(archive)

    def samples_before_the_damage(url):
        found = []
        with OpenFiles() as files, contextlib.suppress(ShardError):
            found.extend((sample.key, bytes(sample.read())) for sample in read_raw_samples([url], files))
        return found

    assert samples_before_the_damage(str(path)) == samples_before_the_damage(f"pipe:cat {path}")


def test_fields_are_read_if_they_are_wanted(written):
    path = written(archive_of([("a.jpg", b"1"), ("a.CLS", b"2"), ("b.jpg", b"3")]))
    for url in (path, f"pipe:cat {path}"):
        assert [fields for _, _, fields in samples_in(url, fields={"cls"})] == [{"cls": b"2"}, {}]


@pytest.mark.filterwarnings("ignore:.*without the end-of-archive blocks")
def test_an_archive_that_is_cut_off_gives_no_part_of_a_sample(written):
    data = archive_of([("a.txt", bytes(700)), ("b/" * 80 + "c.txt", b"x"), ("d.txt", b"y")])
    whole = [sample for _, sample, _ in samples_in(written(data))]
    stops = {0, *(len(b"".join(whole[: count + 1])) for count in range(len(whole)))}
    for length in [*range(1, max(stops), 150), *range(512, max(stops), 512)]:
        path = written(data[:length])
        if length in stops:
            assert b"".join(sample for _, sample, _ in samples_in(path)) == data[:length]
        else:
            with pytest.raises(ShardError, match=r"x\.tar"):
                samples_in(path)


def test_bytes_behind_the_end_are_an_error(written):
    with pytest.raises(ShardError, match="follow the end of the archive"):
        samples_in(written(archive_of([("a.txt", b"x")]) + b"x" * 512))


def test_a_missing_end_is_a_warning(written):
    data = archive_of([("a.txt", b"x")]).rstrip(b"\0")
    with pytest.warns(RuntimeWarning, match="may be truncated"):
        assert len(samples_in(written(data + bytes(-len(data) % 512)))) == 1


def test_an_archive_without_samples_is_a_warning(written):
    with pytest.warns(RuntimeWarning, match="belong to no sample"):
        assert samples_in(written(archive_of([("README", b"x")]))) == []


def test_a_global_header_that_says_more_than_a_comment_is_an_error(written):
    def archive(**records):
        header = tarfile.TarInfo.create_pax_global_header(records)
        return header + archive_of([("a.txt", b"x")], tarfile.USTAR_FORMAT)

    assert len(samples_in(written(archive(comment="of git archive")))) == 1
    with pytest.raises(ShardError, match="global pax header at offset 0"):
        samples_in(written(archive(mtime="1")))


def test_a_shard_that_became_shorter_is_an_error(written):
    path = written(archive_of([("a.txt", bytes(70_000))]))
    with OpenFiles() as files:
        [sample] = read_raw_samples([str(path)], files)
        path.write_bytes(b"")
        with pytest.raises(ShardError, match="became shorter"):
            sample.read()
