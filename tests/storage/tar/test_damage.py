"""Damaged archives: a clear error or correct members, never anything else."""

import copy
import os
import pickle
import tarfile
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mpwds.errors import ShardError
from tests.memory import allocating_below
from tests.storage.members import archive_of, contents_of, read_members, with_checksum


def read(directory, data):
    (directory / "x.tar").write_bytes(data)
    return contents_of(directory / "x.tar")


MEMBERS = [("a.txt", b"1234"), ("n" * 150, b"x" * 700), ("é" * 60, b""), ("b.txt", b"y" * 512)]
ARCHIVES = {name: archive_of(MEMBERS, name) for name in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)}


def repair_checksums(archive):
    for block in range(0, len(archive), 512):
        if archive[block + 257 : block + 262] == b"ustar":
            archive[block : block + 512] = with_checksum(archive[block : block + 512])


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("damage")


@settings(max_examples=80, deadline=None)
@given(archive_format=st.sampled_from(sorted(ARCHIVES)), data=st.data())
def test_a_truncated_archive_is_an_error_or_gives_its_first_members(directory, archive_format, data):
    whole = ARCHIVES[archive_format]
    stop = data.draw(st.integers(0, len(whole)) | st.integers(0, len(whole) // 512).map(lambda n: n * 512))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            members = read(directory, whole[:stop])
        except ShardError:
            return
    assert members == MEMBERS[: len(members)]
    assert stop % 512 == 0 or members == MEMBERS
    assert len(caught) == (stop <= len(whole.rstrip(b"\0")))


@pytest.mark.filterwarnings("ignore:.*may be truncated:RuntimeWarning")
@settings(max_examples=150, deadline=None)
@given(archive_format=st.sampled_from(sorted(ARCHIVES)), data=st.data())
def test_changed_bytes_give_a_shard_error_or_members(directory, archive_format, data):
    mutated = bytearray(ARCHIVES[archive_format])
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans(), label="repair the checksums"):
        repair_checksums(mutated)
    try:
        members = read(directory, bytes(mutated))
    except ShardError:
        return
    assert sum(len(content) for _, content in members) <= len(mutated)


@pytest.mark.filterwarnings("ignore:.*may be truncated:RuntimeWarning")
@settings(max_examples=100, deadline=None)
@given(
    archive_format=st.sampled_from(sorted(ARCHIVES)),
    changes=st.lists(st.tuples(st.integers(0, 7000), st.sampled_from(b"\0 /0157x")), max_size=3),
)
def test_what_is_read_without_an_error_is_what_tarfile_reads_as_far_as_it_gets(
    directory, archive_format, changes
):
    """tarfile also stops without a word, or refuses, where a number is damaged that is not needed."""
    mutated = bytearray(ARCHIVES[archive_format])
    for position, byte in changes:
        mutated[position % len(mutated)] = byte
    repair_checksums(mutated)
    try:
        ours = [content for _, content in read(directory, bytes(mutated))]
        with tarfile.open(directory / "x.tar", "r|") as archive:
            theirs = [archive.extractfile(info).read() for info in archive if info.isreg()]
    except (ShardError, tarfile.ReadError):
        return
    assert ours[: len(theirs)] == theirs
    assert ours == theirs or changes


@settings(max_examples=50, deadline=None)
@given(data=st.binary(min_size=1, max_size=3000).filter(any))
def test_bytes_that_are_no_archive_are_a_shard_error(directory, data):
    with pytest.raises(ShardError):
        read(directory, data)


@pytest.mark.filterwarnings("ignore:.*may be truncated:RuntimeWarning")
@settings(max_examples=60, deadline=None)
@given(
    body=st.binary(max_size=100) | st.from_regex(rb"[0-9]{1,3} (path|size)=[0-9a-z]{0,9}\n", fullmatch=True)
)
@example(b"10 size=x\n")
def test_any_pax_header_gives_a_shard_error_or_members(directory, body):
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, len(body)
    data = info.tobuf(tarfile.USTAR_FORMAT) + body.ljust(-(-len(body) // 512) * 512, b"\0")
    try:
        members = read(directory, data + archive_of([("a", b"1234")]))
    except ShardError:
        return
    assert all((b"1234" + bytes(10240)).startswith(content) for _, content in members)


def test_a_wrong_checksum_is_reported_with_offset_and_both_values_after_the_members_before(tmp_path):
    data = bytearray(archive_of([("a", b"1234"), ("b", b"5678")], tarfile.USTAR_FORMAT))
    stored = int(data[1024 + 148 : 1024 + 154], 8)
    data[1024] ^= 1
    (tmp_path / "x.tar").write_bytes(data)
    members = read_members(str(tmp_path / "x.tar"))
    assert next(members).data == b"1234"
    with pytest.raises(
        ShardError, match=rf"offset 1024 of .*x\.tar has checksum 0o{stored:o}, expected 0o{stored + 1:o}"
    ):
        next(members)


@pytest.mark.parametrize("trailing", [b"x", b"\n" * 511, b"x" * 512, b"x" * 5000])
def test_bytes_behind_the_archive_that_are_no_archive_are_an_error(tmp_path, trailing):
    data = archive_of([("a", b"1234")])
    message = rf"^{len(trailing)} bytes at offset {len(data)} of .*x\.tar follow the end of the archive"
    with pytest.raises(ShardError, match=rf"{message} and are no tar header: cut them off"):
        read(tmp_path, data + trailing)


FALSE = "damaged in the member at offset 0"
NO_SIZE = "expected an octal number"


@pytest.mark.parametrize(
    ("size_field", "message"),
    [
        (b"77777777777\0", FALSE),
        (b"\x80" + b"\0" * 3 + b"\x7f" * 8, FALSE),
        (b"\xff" * 12, FALSE),
        (b"-0000000004\0", NO_SIZE),
        (b"notanumber!\0", NO_SIZE),
    ],
)
@pytest.mark.parametrize("kind", b"0Lx")
def test_a_false_size_is_an_error_and_allocates_nothing(tmp_path, size_field, message, kind):
    header = bytearray(archive_of([("a", b"1234")], tarfile.USTAR_FORMAT)[:512])
    header[124:136], header[156] = size_field, kind
    with allocating_below(4 << 20), pytest.raises(ShardError, match=message):
        read(tmp_path, with_checksum(header) + bytes(1024))


def test_a_huge_extension_header_is_an_error(tmp_path):
    info = tarfile.TarInfo("name")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
    with open(tmp_path / "x.tar", "wb") as stream:
        stream.write(info.tobuf(tarfile.GNU_FORMAT))
        stream.truncate(2 << 30)
    with pytest.raises(ShardError, match="extension header at offset 0"):
        list(read_members(str(tmp_path / "x.tar")))


@pytest.mark.parametrize("ending", [b"", bytes(1024)])
def test_an_extension_header_without_its_member_is_an_error(tmp_path, ending):
    data = archive_of([("a", b"1234"), ("n" * 200, b"5678")])
    with pytest.raises(ShardError, match="extension header"):
        read(tmp_path, data[: 1024 + 1024] + ending)


@pytest.mark.parametrize("left", [0, 100, 512, 1024, (1 << 20) + 512, (1 << 20) + 1024, (1 << 20) + 4096])
def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path, left):
    path = tmp_path / "x.tar"
    path.write_bytes(archive_of([("a", bytes(1 << 20)), ("b", bytes(1 << 20))]))
    members = read_members(str(path))
    next(members)
    os.truncate(path, left)
    with pytest.raises(ShardError, match=r"became shorter|checksum|truncated"):
        next(members)


def test_a_file_that_ends_between_members_while_it_is_read_is_an_error(tmp_path):
    path = tmp_path / "x.tar"
    path.write_bytes(archive_of([(str(index), bytes(512)) for index in range(1000)]))
    members = read_members(str(path))
    next(members)
    os.truncate(path, 1024 * 512)
    with pytest.raises(ShardError, match="became shorter while it was read"):
        list(members)


@pytest.mark.parametrize("copied", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_the_error_is_that_of_tarfile_too(copied):
    with pytest.raises(tarfile.ReadError, match="x"):
        raise copied(ShardError("x"))
