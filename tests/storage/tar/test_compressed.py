"""Compressed archives: told by their first bytes, decompressed as they are read."""

import bz2
import gzip
import io
import lzma
import random
import subprocess
import sys
import tarfile
import zlib

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.errors import ShardError
from mpwds.pipeline.sources.webdataset import WebDataset
from mpwds.storage.tar.compression import compression_of
from tests.memory import allocating_below
from tests.storage.members import Raw, archive_of, read_members

COMPRESS = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}
NOISE = random.Random(1).randbytes(70_000)
MEMBERS = [("a.txt", b"1234"), ("n" * 150, NOISE), ("b.txt", b"x" * 300_000), ("c", b"")]

formats = pytest.mark.parametrize("name", COMPRESS)

ARCHIVE = archive_of(MEMBERS)


def of_stream(data, step=1 << 20, offset=0):
    return read_members("x.tar", offset, open=lambda url, offset: Raw(data, [step], offset))


def contents(members):
    return [(member.name, member.data) for member in members]


@settings(max_examples=10, deadline=None)
@given(data=st.data(), step=st.sampled_from([1, 7, 1000, 65536]))
@formats
def test_a_compressed_stream_is_read_however_its_bytes_come(name, step, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, 6000), max_size=3)))
    archive = archive_of([("a", NOISE[:3000]), ("b", b"x" * 2000)])
    parts = [archive[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(archive)], strict=True)]
    compressed = b"".join(map(COMPRESS[name], parts))
    assert list(of_stream(compressed, step)) == list(of_stream(archive))


@formats
def test_offsets_count_decompressed_bytes_for_files_and_streams(tmp_path, name):
    compressed = COMPRESS[name](ARCHIVE)
    (tmp_path / "x.tar").write_bytes(compressed)
    whole = list(of_stream(ARCHIVE))
    for index, member in enumerate(whole):
        assert list(of_stream(compressed, offset=member.offset)) == whole[index:]
        assert list(read_members(str(tmp_path / "x.tar"), member.offset)) == whole[index:]
    assert list(of_stream(compressed, offset=len(ARCHIVE))) == []
    for read in (of_stream(compressed, offset=1 << 30), read_members(str(tmp_path / "x.tar"), 1 << 30)):
        with pytest.raises(ShardError, match="nothing can be read at offset 1073741824"):
            list(read)


def test_an_offset_in_a_compressed_archive_of_a_server_is_found_again(web):
    web.files["/x.tar.gz"] = gzip.compress(ARCHIVE)
    whole = list(read_members(web.url("/x.tar.gz")))
    assert contents(whole) == MEMBERS
    assert list(read_members(web.url("/x.tar.gz"), whole[3].offset)) == whole[3:]


@formats
def test_zeros_behind_a_compressed_archive_are_padding_and_other_bytes_an_error(name):
    compressed = COMPRESS[name](ARCHIVE)
    assert contents(of_stream(compressed + bytes(100_000))) == MEMBERS
    with pytest.raises(ShardError, match=f"{name}.*the bytes after its end are not {name}: cut them off"):
        list(of_stream(compressed + bytes(10) + b"garbage" * 3))


@formats
def test_a_compressed_archive_that_is_cut_off_is_an_error(name):
    compressed = COMPRESS[name](ARCHIVE)
    for stop in (20, len(compressed) // 2, len(compressed) - 5):
        members = of_stream(compressed[:stop])
        with pytest.raises(ShardError, match=rf"x\.tar cannot be decompressed \({name}\).*truncated"):
            list(members)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
@formats
def test_changed_bytes_are_an_error_or_change_nothing(name, data):
    compressed = bytearray(COMPRESS[name](archive_of([("a", NOISE[:3000])])))
    compressed[data.draw(st.integers(0, len(compressed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        members = list(of_stream(bytes(compressed), 1000))
    except ShardError:
        return
    assert [member.name for member in members] == ["a"]


def test_members_before_the_damage_are_yielded():
    compressed = bytearray(gzip.compress(ARCHIVE, mtime=0))
    members = of_stream(bytes(compressed[: len(compressed) // 2]))
    assert next(members).name == "a.txt"


@formats
def test_what_decompresses_to_no_archive_is_an_error(name):
    with pytest.raises(ShardError, match="not a tar file"):
        list(of_stream(COMPRESS[name](b"no archive" * 1000)))
    with pytest.raises(ShardError, match="has 0 bytes"):
        list(of_stream(COMPRESS[name](b"")))


def test_an_archive_that_begins_as_a_compressed_one_does_is_an_archive():
    """A member's name is the first thing in an archive."""
    archive = archive_of([("BZh91AY&SY.txt", b"1234")])
    assert contents(of_stream(archive)) == [("BZh91AY&SY.txt", b"1234")]


def test_a_zstd_file_of_several_threads_is_read():
    """Such begin with a frame that is to be skipped."""
    skippable = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"abcd"
    assert contents(of_stream(skippable + COMPRESS["zstd"](ARCHIVE))) == MEMBERS


@formats
def test_memory_is_bounded_by_what_is_read_not_by_what_it_could_become(name):
    """24 MB of zeros that compress to next to nothing, in a member that is skipped."""
    info = tarfile.TarInfo("zeros")
    info.size = 24 << 20
    compressed = COMPRESS[name](info.tobuf() + bytes(info.size) + archive_of([("after", b"data")]))
    with allocating_below(16 << 20):
        members = read_members(
            "x.tar", open=lambda url, offset: io.BytesIO(compressed), select=lambda name: name == "after"
        )
        assert contents(members) == [("after", b"data")]


def test_without_zstandard_the_error_names_the_extra(tmp_path):
    (tmp_path / "x.tar").write_bytes(COMPRESS["zstd"](ARCHIVE))
    program = f"""
import sys
sys.modules["zstandard"] = None
from mpwds.storage.tar.entries import read_members
list(read_members({str(tmp_path / "x.tar")!r}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (
        "ImportError: zstd-compressed shards need the package zstandard: pip install 'mpwds[zstd]'"
        in done.stderr
    )


def test_leaving_closes_the_file(tmp_path, nothing_left):
    (tmp_path / "x.tar").write_bytes(gzip.compress(ARCHIVE))
    members = read_members(str(tmp_path / "x.tar"))
    next(members)
    members.close()


def test_an_xz_archive_that_wants_too_much_memory_is_an_error(tmp_path):
    data = bytearray(lzma.compress(archive_of(MEMBERS[:1])))
    assert data[14:16] == b"\x21\x01"  # LZMA2, one byte of properties: the dictionary's size
    data[16] = 37  # 1.5 GiB
    end = 12 + 4 * (data[12] + 1) - 4
    data[end : end + 4] = zlib.crc32(data[12:end]).to_bytes(4, "little")
    (tmp_path / "x.tar.xz").write_bytes(data)
    with pytest.raises(ShardError, match="(?i)memory"):
        list(read_members(str(tmp_path / "x.tar.xz")))


@formats
def test_a_member_that_decompresses_to_more_than_the_limit_is_an_error(tmp_path, name):
    path = tmp_path / "x.tar"
    path.write_bytes(COMPRESS[name](archive_of([("a.txt", b"first"), ("b.bin", bytes(32 << 20))])))
    seen = []
    with allocating_below(24 << 20), pytest.raises(ShardError) as caught:
        for sample in WebDataset(str(path), max_decompressed_bytes=1 << 20):
            seen.append(sample["__key__"])
    start = f"member b.bin at offset 1024 of the compressed shard {path} decompresses to 33554432 bytes"
    assert str(caught.value).startswith(f"{start}, more than the limit of 1048576")
    samples = list(WebDataset(str(path), max_decompressed_bytes=32 << 20))
    assert [sample["__key__"] for sample in samples] == ["a", "b"]


def test_a_member_of_a_plain_archive_has_no_limit_but_the_file(tmp_path):
    path = tmp_path / "x.tar"
    path.write_bytes(archive_of([("b.bin", bytes(8 << 20))]))
    assert len(list(WebDataset(str(path), max_decompressed_bytes=1))) == 1


# zstd is decompressed block by block: what zstandard gives, in small steps


def zstd():
    return compression_of(b"\x28\xb5\x2f\xfd").decompressor()


def whole(frame, data, step, max_length):
    """All that a frame gives when it is fed in steps."""
    pieces, at = [], 0
    while not frame.eof:
        data_now = b""
        if frame.needs_input:
            data_now, at = data[at : at + step], at + step
            assert data_now
        pieces.append(frame.decompress(data_now, max_length))
        assert len(pieces[-1]) <= max_length
    return b"".join(pieces), frame.unused_data + data[at:]


@settings(max_examples=30, deadline=None)
@given(
    size=st.sampled_from([0, 1, 100, 131072, 131073, 400_000]),
    noise=st.sampled_from([0, 1000, 400_000]),
    level=st.sampled_from([-5, 1, 19]),
    checksum=st.booleans(),
    content_size=st.booleans(),
    step=st.sampled_from([1, 3, 1000, 1 << 20]),
    max_length=st.sampled_from([1000, 1 << 20]),
    rest=st.binary(max_size=10),
)
def test_any_frame_is_decompressed_whole_and_what_follows_is_left(
    size, noise, level, checksum, content_size, step, max_length, rest
):
    data = random.Random(1).randbytes(min(noise, size)) + bytes(max(0, size - noise))
    options = zstandard.ZstdCompressionParameters.from_level(
        level, write_checksum=checksum, write_content_size=content_size
    )
    compressor = zstandard.ZstdCompressor(compression_params=options)
    step = step if step > 100 or len(compressor.compress(data)) < 10_000 else 1000
    assert whole(zstd(), compressor.compress(data) + rest, step, max_length) == (data, rest)
    streamed = compressor.compressobj()
    frame = streamed.compress(data[:1000]) + streamed.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    frame += streamed.compress(data[1000:]) + streamed.flush()
    assert whole(zstd(), frame + rest, step, max_length) == (data, rest)


def test_a_skippable_frame_is_a_frame_of_nothing():
    frame = b"\x53\x2a\x4d\x18" + (1000).to_bytes(4, "little") + bytes(1000)
    for step in (1, 7, 5000):
        assert whole(zstd(), frame + b"rest", step, 100) == (b"", b"rest")


def test_a_changed_checksum_is_an_error():
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    frame = bytearray(compressor.compress(b"abc" * 1000))
    frame[-1] ^= 1
    with pytest.raises(zstandard.ZstdError):
        whole(zstd(), bytes(frame), 1 << 20, 1 << 20)


def test_a_little_that_becomes_much_becomes_it_block_by_block():
    data = zstandard.ZstdCompressor(level=19).compress(bytes(64 << 20))
    assert len(data) < 5_000
    frame = zstd()
    with allocating_below(1 << 20):
        for _ in range(10):
            assert len(frame.decompress(data if frame.needs_input else b"", 1 << 20)) <= 128 << 10
