"""Reading tar archives of all kinds: ``test_all_readers.py`` compares their members with tarfile's."""

import io
import os
import subprocess
import tarfile

import pytest

from mpwds.errors import ShardError
from tests.storage.members import Member, archive_of, contents_of, read_members, with_checksum


def file_with(directory, data):
    path = directory / "x.tar"
    path.write_bytes(data)
    return path


def test_an_archive_that_ends_at_a_member_without_zero_blocks_is_read_with_one_warning(tmp_path):
    data = archive_of([("a", b"1234"), ("b", b"5678")], tarfile.USTAR_FORMAT)
    path = file_with(tmp_path, data[: 4 * 512])
    with pytest.warns(RuntimeWarning, match="may be truncated") as caught:
        assert [member.data for member in read_members(str(path))] == [b"1234", b"5678"]
    (warning,) = caught
    assert str(warning.message) == (
        f"{path} ends at offset 2048 without the end-of-archive blocks: it may be truncated"
    )
    assert warning.filename == read_members.__globals__["__file__"]  # the line outside the package


def test_an_appended_archive_without_its_own_zero_blocks_is_warned_of(tmp_path):
    first, second = (archive_of([(name, b"1234")], tarfile.USTAR_FORMAT) for name in "ab")
    with pytest.warns(RuntimeWarning, match=f"at offset {len(first) + 1024} without"):
        contents_of(file_with(tmp_path, first + second[:1024]))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("zeros", [1, 512, 1024])
def test_any_zeros_at_the_end_are_the_end_of_the_archive(tmp_path, zeros):
    data = archive_of([("a", b"1234")], tarfile.USTAR_FORMAT)
    assert contents_of(file_with(tmp_path, data[: 1024 + zeros])) == [("a", b"1234")]


@pytest.mark.filterwarnings("error")
def test_reading_that_stops_early_does_not_warn(tmp_path):
    data = archive_of([("a", b"1234"), ("b", b"5678")], tarfile.USTAR_FORMAT)
    members = read_members(str(file_with(tmp_path, data[: 4 * 512])))
    next(members)
    next(members)
    members.close()
    assert list(members) == []


def test_a_name_that_is_not_utf8_keeps_its_bytes(tmp_path):
    name = b"caf\xe9.txt".decode("utf-8", "surrogateescape")
    data = archive_of([(name, b"data"), (name * 30, b"more")], tarfile.PAX_FORMAT)
    assert contents_of(file_with(tmp_path, data)) == [(name, b"data"), (name * 30, b"more")]


def test_a_v7_archive_is_read_and_its_directories_are_skipped(tmp_path):
    def v7(name, content):
        header = bytearray(archive_of([(name, content)], tarfile.USTAR_FORMAT)[:512])
        header[156] = 0
        header[257:512] = bytes(255)
        return with_checksum(header) + content.ljust(-(-len(content) // 512) * 512, b"\0")

    data = v7("d/", b"") + v7("d/a", b"data") + bytes(1024)
    assert contents_of(file_with(tmp_path, data)) == [("d/a", b"data")]


def test_a_checksum_of_signed_bytes_is_accepted(tmp_path):
    data = bytearray(archive_of([("é" * 20, b"data")], tarfile.GNU_FORMAT))
    counted = data[:148] + b" " * 8 + data[156:512]
    data[148:156] = b"%06o\0 " % sum(byte - 256 if byte > 127 else byte for byte in counted)
    assert contents_of(file_with(tmp_path, bytes(data))) == [("é" * 20, b"data")]


def test_an_empty_pax_record_leaves_the_headers_name_and_size(tmp_path):
    header, records = tarfile.TarInfo("short"), tarfile.TarInfo("pax")
    header.size, records.size, records.type = 4, 16, tarfile.XHDTYPE
    data = (
        records.tobuf()
        + b"8 path=\n8 size=\n".ljust(512, b"\0")
        + header.tobuf()
        + b"data".ljust(1536, b"\0")
    )
    assert contents_of(file_with(tmp_path, data)) == [("short", b"data")]


def test_a_file_is_read_whole_however_little_the_system_reads_at_a_time(tmp_path, monkeypatch):
    members = [("a", b"x" * 1001), ("b", b"y" * 100_000), ("c", b"z")]
    path, pread = file_with(tmp_path, archive_of(members)), os.pread
    for most in (1, 511, 1000):
        monkeypatch.setattr(os, "pread", lambda file, size, at, most=most: pread(file, min(size, most), at))
        assert contents_of(path) == members


def with_global_header(members, **headers):
    return archive_of(members, tarfile.PAX_FORMAT, pax_headers=headers)


A, B = ("a", b"1234"), ("b", b"5678")


@pytest.mark.parametrize(
    ("data", "members"),
    [
        (bytes(10240), []),
        (archive_of([A], tarfile.PAX_FORMAT) + archive_of([B], tarfile.GNU_FORMAT), [A, B]),
        (with_global_header([], comment="abc"), []),
        (with_global_header([A], comment="abc"), [A]),
        (with_global_header([A, B], path="same"), [("same", b"1234"), ("same", b"5678")]),
    ],
    ids=[
        "zero blocks alone",
        "archives one after the other",
        "a global header alone",
        "a global header is no member",
        "a global path holds for all",
    ],
)
def test_members_of_an_archive_of(tmp_path, data, members):
    assert contents_of(file_with(tmp_path, data)) == members


@pytest.mark.parametrize("archive_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_sizes_beyond_8_gib_are_understood(tmp_path, archive_format):
    info = tarfile.TarInfo("volume")
    info.type, info.size = b"V", 9 << 30
    header = info.tobuf(archive_format)
    path = tmp_path / "sparse.tar"
    with open(path, "wb") as stream:
        stream.write(header)
        stream.seek(9 << 30, io.SEEK_CUR)
        stream.write(archive_of([("after", b"data")], tarfile.USTAR_FORMAT))
    assert list(read_members(str(path))) == [Member("after", len(header) + (9 << 30), b"data")]


@pytest.mark.parametrize("archive_format", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_reads_what_the_tar_program_writes(tmp_path, archive_format):
    files = {"a.txt": b"a", f"d/{'n' * 90}.bin": bytes(700), "d/e/b.cls": b""}
    for name, data in files.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    command = ["tar", f"--format={archive_format}", "-cf", "x.tar", "-C", "in", *files]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert dict(contents_of(tmp_path / "x.tar")) == files


def test_gnu_sparse_files_are_refused(tmp_path):
    with open(tmp_path / "holes", "wb") as stream:
        stream.truncate(1 << 20)
    for flavour in (["--format=gnu"], ["--format=posix"]):
        subprocess.run(["tar", *flavour, "-S", "-cf", "x.tar", "holes"], cwd=tmp_path, check=True)
        with pytest.raises(ShardError, match="GNU sparse"):
            list(read_members(str(tmp_path / "x.tar")))


def test_members_get_the_names_that_are_chosen(tmp_path):
    path = file_with(
        tmp_path, archive_of([("a.png", b"1"), ("a.cls", b"2"), ("b.png", b"3")], tarfile.GNU_FORMAT)
    )
    choice = {"a.png": "c.png", "a.cls": None, "b.png": "b.png"}
    members = read_members(str(path), choose=choice.get)
    assert list(members) == [("c.png", 0, b"1"), ("b.png", 2048, b"3")]


def test_what_is_not_selected_is_not_read(tmp_path):
    """A hole stands for the data: reading it would take seconds."""
    info = tarfile.TarInfo("large")
    info.size = 1 << 40
    path = tmp_path / "x.tar"
    with open(path, "wb") as stream:
        stream.write(info.tobuf(tarfile.GNU_FORMAT))
        stream.seek(1 << 40, io.SEEK_CUR)
        stream.write(archive_of([("after", b"data")], tarfile.USTAR_FORMAT))
    members = list(read_members(str(path), select=lambda name: name == "after"))
    assert members == [Member("after", 512 + (1 << 40), b"data")]


def test_a_missing_file_is_named():
    with pytest.raises(FileNotFoundError, match=r"nowhere/x\.tar"):
        next(read_members("nowhere/x.tar"))
