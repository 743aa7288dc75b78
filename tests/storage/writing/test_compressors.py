"""Compressed archives: what tar, gzip, bzip2, xz, zstd and webdataset read, the same bytes at any time."""

import bz2
import gzip
import io
import lzma
import sys
import tarfile
import time

import pytest
import webdataset
import zstandard

from mpwds.errors import ShardError
from mpwds.storage.tar.compression import compression_for
from mpwds.storage.tar.entries import read_members
from mpwds.storage.writing.tar_writer import TarWriter
from tests.storage.members import write_all

SAMPLES = [{"__key__": f"{index:06d}", "cls": index, "txt": "text" * index} for index in range(5)]
NAMES = [f"{index:06d}.{field}" for index in range(5) for field in ("cls", "txt")]


def decompressed(path, compression):
    if compression == "zst":
        return zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
    return {"gz": gzip, "bz2": bz2, "xz": lzma}[compression].decompress(path.read_bytes())


@pytest.mark.parametrize(
    ("name", "compress", "compression"),
    [
        ("x.tar.gz", None, "gz"),
        ("x.tgz", None, "gz"),
        ("x.TGZ", None, "gz"),
        ("x.tar", True, "gz"),
        ("x.tar", "gz", "gz"),
        ("x.tar.bz2", None, "bz2"),
        ("x.tar.xz", None, "xz"),
        ("x.tar.zst", None, "zst"),
        ("x", "zst", "zst"),
        ("x.tar.zst", "gz", "gz"),
    ],
)
def test_an_archive_is_compressed_as_its_name_or_the_caller_says(tmp_path, name, compress, compression):
    write_all(TarWriter(tmp_path / name, compress=compress, mtime=1), SAMPLES)
    write_all(TarWriter(tmp_path / "plain", mtime=1), SAMPLES)
    assert decompressed(tmp_path / name, compression) == (tmp_path / "plain").read_bytes()


@pytest.mark.parametrize(("name", "compress"), [("x.tar", None), ("x.tar", False), ("x.tar.gz", False)])
def test_other_archives_are_not_compressed(tmp_path, name, compress):
    write_all(TarWriter(tmp_path / name, compress=compress), SAMPLES)
    with tarfile.open(tmp_path / name, "r:") as archive:
        assert archive.getnames() == NAMES


@pytest.mark.parametrize("name", ["x.tar", "x.tgz", "x.tar.bz2", "x.tar.xz", "x.tar.zst"])
def test_a_fixed_time_gives_the_same_bytes_at_any_time_under_any_name(tmp_path, monkeypatch, name):
    write_all(TarWriter(tmp_path / name, mtime=5), SAMPLES)
    monkeypatch.setattr(time, "time", lambda: 2e9)
    write_all(TarWriter(tmp_path / f"other-{name}", mtime=5), SAMPLES)
    assert (tmp_path / name).read_bytes() == (tmp_path / f"other-{name}").read_bytes()


@pytest.mark.parametrize("compress", ["gz", "bz2", "xz", "zst"])
def test_a_flipped_bit_is_an_error_or_changes_nothing(tmp_path, compress):
    path = tmp_path / "x"
    write_all(TarWriter(path, compress=compress, mtime=1), SAMPLES)
    whole, members = path.read_bytes(), list(read_members(str(path)))
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            found = list(read_members(str(path)))
        except ShardError:
            continue
        assert found == members


@pytest.mark.parametrize("name", ["x.tar", "x.tgz", "x.tar.bz2", "x.tar.xz", "pipe:cat > x.tgz"])
@pytest.mark.parametrize("compress", [None, False, True])
def test_the_rules_are_those_of_webdataset(name, compress):
    theirs = webdataset.TarWriter.tarmode(name, compress).removeprefix("w|") or None
    assert compression_for(compress, name) == theirs


def test_a_name_that_is_a_suffix_has_none():
    assert compression_for(None, "gz") is None


def test_a_stream_can_be_compressed_as_well():
    stream = io.BytesIO()
    write_all(TarWriter(stream, compress="gz"), SAMPLES)
    with tarfile.open(fileobj=io.BytesIO(stream.getvalue()), mode="r:gz") as archive:
        assert archive.getnames() == NAMES


def test_a_missing_zstandard_names_the_extra_before_a_file_is_made(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ImportError, match=r"pip install 'mpwds\[zstd\]'"):
        TarWriter(tmp_path / "x.tar.zst")
    assert list(tmp_path.iterdir()) == []


def test_the_query_of_a_url_is_no_part_of_its_name():
    assert compression_for(None, "https://host/x.tar.gz?signature=a.b") == "gz"
    assert compression_for(None, "https://host/x.tar?name=a.gz") is None
    assert compression_for(None, "pipe:curl -T - https://host/put?name=x.gz") == "gz"
