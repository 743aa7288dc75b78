"""Streams of fields: those of large ones copy their bytes when they are first used."""

import io
import pickle

import pytest

from mpwds.pipeline.indexed.shard_list import LazyBytesIO

DATA = b"one\ntwo\nthree"

USES = [
    lambda stream: stream.read(),
    lambda stream: (stream.read(2), stream.read(3), stream.tell()),
    lambda stream: (stream.seek(-3, 2), stream.read1()),
    lambda stream: (stream.readline(), stream.readlines()),
    lambda stream: list(stream),
    lambda stream: next(stream),
    lambda stream: stream.getvalue(),
    lambda stream: bytes(stream.getbuffer()),
    lambda stream: (stream.readinto(buffer := bytearray(5)), buffer),
    lambda stream: (stream.readinto1(buffer := bytearray(5)), buffer),
    lambda stream: (stream.seek(4), stream.write(b"2"), stream.getvalue()),
    lambda stream: (stream.writelines([b"1", b"2"]), stream.getvalue()),
    lambda stream: (stream.truncate(3), stream.getvalue()),
    lambda stream: io.TextIOWrapper(stream).readlines(),
    lambda stream: (stream.readable(), stream.writable(), stream.seekable(), stream.closed),
    lambda stream: (stream.read(5), pickle.loads(pickle.dumps(stream)).read()),
]


@pytest.mark.parametrize("use", USES)
def test_it_does_what_a_bytesio_does(use):
    assert use(LazyBytesIO(memoryview(DATA))) == use(io.BytesIO(DATA))


def test_nothing_is_copied_before_it_is_used():
    data = bytearray(DATA)
    stream = LazyBytesIO(memoryview(data))
    data[:3] = b"ONE"
    assert stream.readline() == b"ONE\n"
    data[4:7] = b"TWO"
    assert stream.readline() == b"two\n"


def test_a_closed_one_says_so():
    stream = LazyBytesIO(memoryview(DATA))
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        stream.read()
