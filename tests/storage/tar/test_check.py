"""What is kept in a cache looks like a shard by its first bytes."""

import bz2
import gzip
import lzma
import tarfile

import pytest

from mpwds.storage.tar.entries import check_tar_format, is_whole_shard
from tests.storage.members import FORMATS, archive_of, with_checksum


def before_ustar():
    header = bytearray(tarfile.TarInfo("x").tobuf(tarfile.USTAR_FORMAT))
    header[257:265] = bytes(8)
    return with_checksum(header)


ERROR_PAGE = b"<html>" + bytes(600)


@pytest.mark.parametrize(
    ("data", "is_shard"),
    [
        (before_ustar(), True),
        (bytes(10_240), True),
        *((archive_of([("ä" * 120, b"")], format), True) for format in FORMATS[1:]),
        *((data, False) for data in (b"", ERROR_PAGE, b"x" * 600, before_ustar()[:511])),
    ],
)
def test_shards_are_told_from_other_bytes(tmp_path, data, is_shard):
    (tmp_path / "x").write_bytes(data)
    assert check_tar_format(str(tmp_path / "x")) == is_shard


def members(count):
    return archive_of((f"{number}.bin", bytes([number]) * 1000) for number in range(count))


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_a_shard_is_whole_if_it_can_be_read_to_its_end(tmp_path, compress):
    whole = compress(members(9))
    (tmp_path / "x").write_bytes(whole)
    assert check_tar_format(tmp_path / "x")
    assert is_whole_shard(tmp_path / "x")
    (tmp_path / "x").write_bytes(whole[: len(whole) // 2])
    assert check_tar_format(tmp_path / "x")
    assert not is_whole_shard(tmp_path / "x")


def test_a_shard_with_a_damaged_header_and_an_error_page_are_not_whole(tmp_path):
    damaged = bytearray(members(3))
    damaged[3 * 1536 - 1200] ^= 1  # in the third member's header
    for data in (damaged, ERROR_PAGE):
        (tmp_path / "x").write_bytes(data)
        assert not is_whole_shard(str(tmp_path / "x"))


def test_a_shard_without_end_mark_is_whole_and_nobody_is_warned(tmp_path, recwarn):
    (tmp_path / "x").write_bytes(members(3)[: 3 * 1536])
    assert is_whole_shard(tmp_path / "x")
    assert not recwarn.list
