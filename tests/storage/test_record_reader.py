import io
import struct
from itertools import pairwise

import cbor2
import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.errors import ShardError
from mpwds.storage.record_reader import read_cbor_records, read_msgpack_records
from tests.memory import allocating_below
from tests.storage.members import Plain

FORMATS = {"cbor": (cbor2.dumps, read_cbor_records), "msgpack": (msgpack.packb, read_msgpack_records)}

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(values=st.lists(VALUES, max_size=6), format=st.sampled_from(sorted(FORMATS)))
def test_records_come_back_each_at_its_offset(values, format):
    dump, read = FORMATS[format]
    data = b"".join(map(dump, values))
    records = list(read(io.BytesIO(data), "x"))
    assert [record for _, _, record in records] == values
    assert all(record[1] == following[0] for record, following in pairwise(records))
    assert list(read(Plain(data, [3]), "x")) == records
    for offset, following, value in records:
        assert dump(value) == data[offset : following or len(data)]
        assert next(read(io.BytesIO(data[offset:]), "x", offset)) == (offset, following, value)


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(VALUES, min_size=1, max_size=4), format=st.sampled_from(sorted(FORMATS)), cut=st.data()
)
def test_a_file_that_ends_inside_a_record_is_an_error_behind_the_whole_ones(values, format, cut):
    dump, read = FORMATS[format]
    parts = list(map(dump, values))
    whole = b"".join(parts[:-1])
    data = whole + parts[-1][: cut.draw(st.integers(0, len(parts[-1]) - 1))]
    records = read(io.BytesIO(data), "x.bin")
    if data == whole:
        assert [record for _, _, record in records] == values[:-1]
    else:
        message = f"the record at offset {len(whole)} of x.bin is truncated: the file ends in it"
        with pytest.raises(ShardError, match=message):
            for (_, _, record), value in zip(records, values, strict=False):
                assert record == value


@pytest.mark.parametrize(("format", "garbage"), [("cbor", b"\x1c"), ("msgpack", b"\xc1")])
def test_damage_names_file_and_offset(format, garbage):
    dump, read = FORMATS[format]
    records = read(io.BytesIO(dump([1, 2]) + garbage), "x.bin")
    assert next(records)[2] == [1, 2]
    with pytest.raises(ShardError, match="the record at offset 3 of x.bin is damaged or too large"):
        next(records)


@pytest.mark.parametrize("format", FORMATS)
def test_a_record_beyond_the_limit_is_refused(format):
    dump, read = FORMATS[format]
    data = dump(b"x" * 1_000_000)
    with pytest.raises(ShardError, match="damaged or too large"):
        list(read(io.BytesIO(data), "x", 0, 500_000))
    assert len(list(read(io.BytesIO(data * 3), "x", 0, len(data)))) == 3


@pytest.mark.parametrize(
    ("format", "header"),
    [
        ("cbor", b"\x5b" + struct.pack(">Q", 1 << 40)),
        ("cbor", b"\x9b" + struct.pack(">Q", 1 << 40)),
        ("msgpack", b"\xc6" + struct.pack(">I", (1 << 32) - 1)),
        ("msgpack", b"\xdd" + struct.pack(">I", (1 << 32) - 1)),
    ],
)
def test_a_false_size_reads_no_more_than_there_is(format, header):
    with allocating_below(50_000_000), pytest.raises(ShardError):
        list(FORMATS[format][1](io.BytesIO(header + b"abc"), "x"))


def test_maps_may_have_keys_of_any_kind():
    ((_, _, record),) = read_msgpack_records(io.BytesIO(msgpack.packb({1: "a"})), "x")
    assert record == {1: "a"}


def test_an_error_of_the_stream_itself_is_passed_on():
    class Broken:
        def read(self, size=-1):
            raise OSError("disconnected")

    for _, read in FORMATS.values():
        with pytest.raises(OSError, match="disconnected"):
            list(read(Broken(), "x"))
