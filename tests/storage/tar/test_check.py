"""What is kept in a cache looks like a shard by its first bytes."""

import bz2
import gzip
import lzma
import tarfile

import pytest

from mpwds.storage.tar.entries import check_tar_format, is_whole_shard
from tests.storage.members import FORMATS, archive_of, with_checksum

LONG_NAME = archive_of([("ä" * 120, b"")])


@pytest.mark.parametrize("format", FORMATS[1:])
@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_archives_are_shards_compressed_or_not(tmp_path, format, compress):
    (tmp_path / "x").write_bytes(compress(archive_of([("ä" * 120, b"")], format)))
    assert check_tar_format(tmp_path / "x")


def test_an_archive_of_the_time_before_ustar_is_a_shard(tmp_path):
    header = bytearray(tarfile.TarInfo("x").tobuf(tarfile.USTAR_FORMAT))
    header[257:265] = bytes(8)
    (tmp_path / "x").write_bytes(with_checksum(header))
    assert check_tar_format(str(tmp_path / "x"))


def test_an_empty_archive_is_a_shard(tmp_path):
    (tmp_path / "x").write_bytes(bytes(10_240))
    assert check_tar_format(tmp_path / "x")


@pytest.mark.parametrize("data", [b"", b"<html>" + bytes(600), b"x" * 600, LONG_NAME[:511]])
def test_other_bytes_are_none(tmp_path, data):
    (tmp_path / "x").write_bytes(data)
    assert not check_tar_format(tmp_path / "x")


def members(count):
    return archive_of((f"{number}.bin", bytes([number]) * 1000) for number in range(count))


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_a_shard_is_whole_if_it_can_be_read_to_its_end(tmp_path, compress):
    whole = compress(members(9))
    (tmp_path / "x").write_bytes(whole)
    assert is_whole_shard(tmp_path / "x")
    (tmp_path / "x").write_bytes(whole[: len(whole) // 2])
    assert check_tar_format(tmp_path / "x")
    assert not is_whole_shard(tmp_path / "x")


def test_a_shard_with_a_damaged_header_is_not_whole(tmp_path):
    data = bytearray(members(3))
    data[3 * 1536 - 1200] ^= 1  # in the third member's header
    (tmp_path / "x").write_bytes(data)
    assert not is_whole_shard(str(tmp_path / "x"))


def test_a_shard_without_end_mark_is_whole_and_nobody_is_warned(tmp_path, recwarn):
    (tmp_path / "x").write_bytes(members(3)[: 3 * 1536])
    assert is_whole_shard(tmp_path / "x")
    assert not recwarn.list


def test_an_error_page_is_no_whole_shard(tmp_path):
    (tmp_path / "x").write_bytes(b"<html>" + bytes(600))
    assert not is_whole_shard(tmp_path / "x")
