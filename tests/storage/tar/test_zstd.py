"""Decompressing zstd block by block: what zstandard gives, in small steps."""

import random

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.storage.tar.compression import compression_of
from tests.memory import allocating_below


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
