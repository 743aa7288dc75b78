"""Reading archives from streams: the same members as from files, however the bytes come."""

import contextlib
import gzip
import io
import os
import subprocess
import sys
import tarfile
import threading
import warnings
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.errors import ShardError
from mpwds.storage.tar.scanning import scan
from tests.memory import allocating_below
from tests.storage.members import Plain, Raw, archive_of, read_members

names = st.text("ab./é", min_size=1, max_size=130)
contents = st.integers(0, 1400).map(lambda size: b"x" * size)
formats = st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
steps = st.lists(st.integers(1, 3000), min_size=1, max_size=5)


def outcome(members):
    """What reading gave: the members before the end or the error, the error's type, and whether it warned."""
    read, error = [], None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for member in members:
                read.append(member)
        except Exception as raised:
            error = type(raised)
    return read, error, [warning.category for warning in caught]


def of_stream(data, steps=(1 << 20,), kind=Raw, **options):
    return read_members("stream.tar", open=lambda url, offset: kind(data, steps, offset), **options)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("streams")


def of_file(directory, data, **options):
    path = directory / "x.tar"
    path.write_bytes(data)
    return read_members(str(path), **options)


@settings(max_examples=80, deadline=None)
@given(
    members=st.lists(st.tuples(names, contents | st.just("directory")), max_size=6),
    archive_format=formats,
    steps=steps,
    kind=st.sampled_from([Raw, Plain]),
    data=st.data(),
)
def test_a_stream_gives_what_the_file_gives_damaged_or_not(
    directory, members, archive_format, steps, kind, data
):
    archive = bytearray(archive_of(members, archive_format))
    damage = data.draw(st.sampled_from(["none", "cut", "change", "append", "concatenate"]))
    if damage == "cut":
        del archive[data.draw(st.integers(1, len(archive))) :]
    elif damage == "change":
        archive[data.draw(st.integers(0, len(archive) - 1))] ^= data.draw(st.integers(1, 255))
    elif damage == "append":
        archive += data.draw(st.binary(max_size=600) | st.integers(0, 2000).map(bytes))
    elif damage == "concatenate":
        archive += archive_of(members[::-1], archive_format)
    archive = bytes(archive)
    assert outcome(of_stream(archive, steps, kind)) == outcome(of_file(directory, archive))


def test_a_stream_cut_at_each_block_gives_what_the_file_gives(directory):
    members = [
        ("a.txt", b"1234"),
        ("n" * 150, b"x" * 700),
        ("é" * 60, b""),
        ("d", "directory"),
        ("b", b"y" * 512),
    ]
    for archive_format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        archive = archive_of(members, archive_format)
        for stop in range(0, len(archive), 512):
            for cut in (archive[:stop], archive[: stop + 100]):
                assert outcome(of_stream(cut, [700])) == outcome(of_file(directory, cut))


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 511, 512, 4000, 31000, 33000, 140000, 600000]), max_size=9),
    step=st.sampled_from([1000, 65536, 1 << 20]),
    skipped=st.sets(st.integers(0, 8)),
)
def test_members_of_any_size_are_read_whole_or_skipped_whole(directory, sizes, step, skipped):
    members = [(f"{index}.bin", bytes([index + 1]) * size) for index, size in enumerate(sizes)]
    archive = archive_of(members, tarfile.USTAR_FORMAT)
    expected = [member for index, member in enumerate(members) if index not in skipped]
    for read in (partial(of_stream, archive, [step]), partial(of_file, directory, archive)):
        found = read(select=lambda name: int(name[0]) not in skipped)
        assert [(member.name, member.data) for member in found] == expected


@pytest.mark.parametrize(
    ("data", "offset", "message"),
    [
        (b"", 0, r"\.tar has 0 bytes, nothing can be read at offset 0"),
        (archive_of([("a", b"1234")]), 20480, "nothing can be read at offset 20480"),
        (archive_of([("a", b"1234")]), 512, r"tar header at offset 512 of .*\.tar has checksum"),
    ],
)
def test_an_offset_at_which_no_member_begins_is_an_error(directory, data, offset, message):
    for read in (of_stream, partial(of_file, directory)):
        with pytest.raises(ShardError, match=message):
            list(read(data, offset=offset))


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, b"V"])
@pytest.mark.parametrize("size", [1 << 40, 1 << 60])
def test_a_false_size_never_allocates_more_than_the_stream_holds(kind, size):
    info = tarfile.TarInfo("a")
    info.type, info.size = kind, size
    archive = info.tobuf(tarfile.GNU_FORMAT) + bytes(3 << 20)
    with allocating_below(10 << 20), pytest.raises(ShardError, match="truncated"):
        list(of_stream(archive, [1 << 16]))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_stream():
    class Endless(io.RawIOBase):
        """Five thousand members of 4 kB, then the end."""

        def __init__(self):
            self._block = archive_of([("a.bin", b"x" * 4096)], tarfile.USTAR_FORMAT)[: 512 + 4096]
            self._left = 5_000 * len(self._block)

        def readable(self):
            return True

        def readinto(self, buffer):
            at = -self._left % len(self._block)
            count = min(len(buffer), len(self._block) - at, self._left)
            buffer[:count] = self._block[at : at + count]
            self._left -= count
            return count

    with allocating_below(2 << 20), pytest.warns(RuntimeWarning, match="end-of-archive"):
        assert sum(1 for _ in read_members("x.tar", open=lambda url, offset: Endless())) == 5_000


@pytest.mark.parametrize("kind", [Raw, Plain])
@pytest.mark.parametrize("end", ["whole", "left", "cut off", "no archive"])
def test_the_stream_is_closed_at_the_end_when_left_and_on_an_error(kind, end):
    closed = []

    class Noted(kind):
        def close(self):
            closed.append(True)
            super().close()

    archive = archive_of([("a", b"1"), ("b", b"2")])
    data = {"cut off": archive[:600], "no archive": b"x" * 512}.get(end, archive)
    members = of_stream(data, kind=Noted)
    if end == "left":
        next(members)
        assert not closed
        members.close()
    else:
        with contextlib.nullcontext() if end == "whole" else pytest.raises(ShardError):
            list(members)
    assert closed


def test_errors_of_the_stream_pass_after_the_members_before_them():
    class Breaks(Raw):
        def readinto(self, buffer):
            if self._reads == 3:
                raise ConnectionResetError("gone")
            return super().readinto(buffer)

    archive = archive_of([(str(index), bytes(512)) for index in range(9)], tarfile.USTAR_FORMAT)
    members = read_members("x.tar", open=lambda url, offset: Breaks(archive, [1024]))
    assert [next(members).name for _ in range(3)] == ["0", "1", "2"]
    with pytest.raises(ConnectionResetError):
        next(members)


def test_a_stream_that_does_not_block_is_refused():
    class NothingYet(Raw):
        def readinto(self, buffer):
            return None

    with pytest.raises(BlockingIOError, match="blocking streams"):
        list(of_stream(b"", kind=NothingYet))


def test_members_are_yielded_as_soon_as_they_are_there():
    reading, writing = os.pipe()
    archive = archive_of([("a", b"1234"), ("b", b"5678")], tarfile.USTAR_FORMAT)
    members = read_members("x.tar", open=lambda url, offset: os.fdopen(reading, "rb"))
    os.write(writing, archive[:1024])
    assert next(members).name == "a"
    os.write(writing, archive[1024:])
    os.close(writing)
    assert [member.name for member in members] == ["b"]


def test_a_named_pipe_is_read(tmp_path):
    os.mkfifo(tmp_path / "x.tar")
    archive = archive_of([("a", b"1234")])
    writer = threading.Thread(target=(tmp_path / "x.tar").write_bytes, args=(archive,))
    writer.start()
    assert [member.data for member in read_members(str(tmp_path / "x.tar"))] == [b"1234"]
    writer.join()


def test_a_command_is_read_and_ended_when_the_reader_leaves(tmp_path, nothing_left):
    path = tmp_path / "x.tar"
    path.write_bytes(archive_of([(str(index), bytes(100_000)) for index in range(20)]))
    assert len(list(read_members(f"pipe:cat {path}"))) == 20
    members = read_members(f"pipe:cat {path}; sleep 1000")
    next(members)
    members.close()


def test_a_web_servers_archive_is_read_from_any_member(web):
    web.files["/x.tar"] = archive_of([(f"{index}.bin", b"x" * (index * 50_000)) for index in range(6)])
    whole = list(read_members(web.url()))
    assert [len(member.data) for member in whole] == [index * 50_000 for index in range(6)]
    assert list(read_members(web.url(), whole[3].offset)) == whole[3:]
    assert web.asked("Range")[-1] == f"bytes={whole[3].offset}-"


def test_a_connection_that_breaks_is_made_good(web):
    web.files["/x.tar"] = archive_of([(f"{index}.bin", b"x" * 50_000) for index in range(6)])
    web.plan = [{"reset": 120_000}]
    assert [len(member.data) for member in read_members(web.url())] == [50_000] * 6


def test_standard_input_is_read_and_stays_open(tmp_path):
    (tmp_path / "x.tar").write_bytes(archive_of([("a", b"1234")]))
    program = """
import sys
from mpwds.storage.tar.entries import read_members
print([member[0] for member in read_members("-")], sys.stdin.closed)
"""
    for source in (f"cat {tmp_path}/x.tar |", f"< {tmp_path}/x.tar"):
        shell = f"{source} {sys.executable} -c '{program}'"
        done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
        assert done.stdout == "['a'] False\n"


def test_an_object_that_only_has_a_files_descriptor_is_read_through_itself(tmp_path):
    """Objects that decrypt or decompress have the descriptor of the file beneath them."""
    (tmp_path / "x").write_bytes(bytes(byte ^ 1 for byte in archive_of([("a", b"1234")])))

    class Decrypted(io.FileIO):
        def readinto(self, buffer):
            count = super().readinto(buffer)
            buffer[:count] = bytes(byte ^ 1 for byte in buffer[:count])
            return count

    for wrap in (io.BufferedReader, lambda raw: raw):
        members = read_members("x", open=lambda url, offset, wrap=wrap: wrap(Decrypted(tmp_path / "x")))
        assert [member.data for member in members] == [b"1234"]


def test_credentials_in_a_url_are_in_no_message():
    with pytest.raises(ShardError) as caught:
        list(read_members("http://me:secret@host/x.tar", open=lambda url, offset: io.BytesIO(b"x" * 512)))
    assert "host/x.tar" in str(caught.value)
    assert "secret" not in str(caught.value)


TWO = archive_of([("a", b"1234"), ("b", b"5678")], tarfile.USTAR_FORMAT)
CUT = TWO[: 2 * 512]  # the first member, and no end


def untold(web):
    web.plan = [{"sends_length": False, "cut": len(CUT)}] * 3
    return web.url("/two.tar")


def fifo(web):
    os.mkfifo("fifo")
    threading.Thread(target=lambda: Path("fifo").write_bytes(CUT)).start()
    return "fifo"


@pytest.mark.parametrize(
    "place", [untold, fifo, lambda web: "pipe:cat cut.tar"], ids=["web", "named pipe", "command"]
)
def test_a_stream_of_unknown_length_without_an_end_is_cut_off(place, web, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cut.tar").write_bytes(CUT)
    web.files["/two.tar"] = TWO
    members = read_members(place(web))
    assert next(members).name == "a"
    with pytest.raises(ShardError, match="is cut off: it ends at offset 1024 without the end-of-archive bl"):
        next(members)


@pytest.mark.parametrize("how", [{"chunked": True}, {"sends_length": True}])
def test_a_stream_of_known_length_may_lack_the_end(how, web):
    web.files["/cut.tar"] = CUT
    web.plan = [how]
    with pytest.warns(RuntimeWarning, match="ends at offset 1024 without the end-of-archive blocks"):
        assert [member.name for member in read_members(web.url("/cut.tar"))] == ["a"]


def test_a_compressed_stream_of_unknown_length_may_lack_the_end(tmp_path):
    (tmp_path / "cut.tar.gz").write_bytes(gzip.compress(CUT))
    with pytest.warns(RuntimeWarning, match="ends at offset 1024 without the end-of-archive blocks"):
        assert [member.name for member in read_members(f"pipe:cat {tmp_path}/cut.tar.gz")] == ["a"]
    with pytest.raises(ShardError, match="it ends in the middle, so it is truncated"):
        list(read_members(f"pipe:head -c 60 {tmp_path}/cut.tar.gz"))


@pytest.mark.parametrize("how", [{"sends_length": False}, {"chunked": True}])
def test_a_stream_of_unknown_length_is_whole_with_its_end(how, web):
    web.files["/two.tar"] = TWO
    web.plan = [how]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [member.name for member in read_members(web.url("/two.tar"))] == ["a", "b"]


def test_scanning_calls_a_stream_of_unknown_length_without_an_end_damaged(web):
    web.files["/two.tar"] = TWO
    entry, damage = scan(untold(web))
    assert (entry.name, damage.offset) == ("a", len(CUT))
    assert "is cut off" in damage.reason
