"""Encodings of MDS version 2, on their own: values survive, and damaged bytes are errors."""

import io
import re
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from mpwds import DecodeError, ShardError
from mpwds.storage.mds.encodings import encoding
from mpwds.storage.mds.shards_v2 import ColumnDecoder
from tests.memory import allocating_below

VALUES = {
    "bytes": st.binary(),
    "str": st.text(),
    "int": st.integers(-(2**63), 2**63 - 1),
    "str_int": st.integers(),
    "str_float": st.floats(allow_nan=False),
    "str_decimal": st.decimals(allow_nan=False),
    "json": st.recursive(
        st.none() | st.booleans() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    ),
}
EVERY = [
    *VALUES,
    *("ndarray", "ndarray:float32", "ndarray:uint8:3,4", "uint8", "float64"),
    *("pil", "jpeg", "png", "jpeg_array", "list[pil]", "list[jpeg]", "list[png]"),
]
DTYPES = st.sampled_from(["u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8", ">i4", ">f8"])


@pytest.mark.parametrize("name", VALUES)
@settings(max_examples=30)
@given(data=st.data())
def test_values_survive(name, data):
    value = data.draw(VALUES[name])
    column = encoding(name)
    assert column.decode(column.encode(value)) == value


@given(arrays.arrays(DTYPES, arrays.array_shapes(max_dims=5)))
def test_arrays_survive(array):
    column = encoding("ndarray")
    found = column.decode(column.encode(array))
    assert (found.dtype, found.shape) == (array.dtype.newbyteorder("="), array.shape)
    np.testing.assert_array_equal(found, array)


class InMemory:
    """A shard's file that is none."""

    url = "shard.mds"

    def __init__(self, data):
        self.data = data

    def read(self, size, offset):
        return self.data[offset : offset + size]


@pytest.mark.parametrize("name", EVERY)
@given(data=st.binary(max_size=200))
def test_random_bytes_are_decoded_or_refused_with_file_and_offset(name, data):
    decoder = ColumnDecoder({"x": encoding(name)})
    sizes = b"" if encoding(name).size else struct.pack("<I", len(data))
    file = InMemory(bytes(1000) + sizes + data)
    try:
        decoder.decode(file, 1000, len(file.data), 7)
        message = ""
    except (DecodeError, ShardError) as error:
        message = str(error)
    assert not message or re.search("(?=.*sample 7)(?=.*shard.mds)(?=.*at offset 100)", message)


@pytest.mark.parametrize("name", ["pil", "list[pil]", "list[jpeg]", "jpeg_array", "ndarray"])
def test_numbers_that_promise_gigabytes_take_no_memory(name):
    data = {
        "pil": struct.pack("<3I", 60_000, 60_000, 3) + b"RGB",
        "list[pil]": struct.pack("<2I", 0, 2**32 - 1),
        "list[jpeg]": struct.pack("<3I", 0, 1, 2**32 - 1),
        "jpeg_array": struct.pack("<2I", 2**31, 5),
        "ndarray": bytes([66, 2 << 2 | 3]) + struct.pack("<2Q", 2**40, 2**40),
    }[name]
    column = encoding(name)
    with allocating_below(1_000_000), pytest.raises(ValueError, match="do not|does not|end at"):
        column.decode(data)


def test_only_a_jpeg_file_that_is_still_there_is_stored_as_it_is(tmp_path):
    path = tmp_path / "x.jpg"
    Image.new("RGB", (9, 9), "red").save(path, quality=20)
    with Image.open(path) as image, Image.open(io.BytesIO(path.read_bytes())) as unnamed:
        assert encoding("jpeg").encode(image) == path.read_bytes()
        image.load()
        path.unlink()
        for each in (image, unnamed):
            assert encoding("jpeg").decode(encoding("jpeg").encode(each)).format == "JPEG"
    Image.new("RGB", (9, 9), "red").save(path, quality=20)
    with Image.open(path) as image:
        image.load()
        assert encoding("jpeg").encode(image) == path.read_bytes()
        image.putpixel((0, 0), (0, 0, 255))
        assert encoding("jpeg").encode(image) != path.read_bytes()
        image.thumbnail((4, 4))
        assert encoding("jpeg").decode(encoding("jpeg").encode(image)).size == (4, 4)
    image.save(tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as image:
        assert encoding("jpeg").decode(encoding("jpeg").encode(image)).format == "JPEG"


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGB", "RGBA", "I", "F", "I;16"])
def test_an_image_without_compression_keeps_size_mode_and_pixels(mode):
    image = Image.effect_noise((9, 3), 50).convert(mode)
    data = encoding("pil").encode(image)
    found = encoding("pil").decode(data)
    assert (found.size, found.mode, found.tobytes()) == (image.size, mode, image.tobytes())
    for wrong in (data[:-1], data + b"\0"):
        with pytest.raises(ValueError, match=rf"9 x 3 pixels of mode '{mode}' do not have \d+ bytes"):
            encoding("pil").decode(wrong)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("ndarray", bytes([7, 4, 1, 0]), "type 7 of an array is unknown"),
        ("ndarray", bytes([8, 4, 2, 0]), r"an array of uint8 and shape \(2,\) does not have 1 bytes"),
        ("list[png]", struct.pack("<2I", 0, 1), "a list of 1 elements does not fit into 8 bytes"),
        ("list[png]", struct.pack("<3I", 0, 1, 2) + b"x", "the elements of a list end at byte 14 of 13"),
        ("pil", struct.pack("<3I", 0, 3, 1) + b"L", "0 x 3 pixels of mode 'L' do not have 0 bytes"),
        ("pil", struct.pack("<3I", 3, 0, 1) + b"L", "3 x 0 pixels of mode 'L' do not have 0 bytes"),
        ("pil", struct.pack("<3I", 3, 3, 1) + b"?", "3 x 3 pixels of mode '.' do not have 0 bytes"),
        ("jpeg", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "cannot identify"),
    ],
)
def test_bytes_that_hold_no_value_are_an_error(name, data, message):
    with pytest.raises((ValueError, OSError), match=message):
        encoding(name).decode(data)


def test_a_truncated_image_is_an_error():
    data = encoding("png").encode(Image.effect_noise((64, 64), 50))
    with pytest.raises(OSError, match="truncated"):
        encoding("png").decode(data[:-500])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("int", 2**63, "str_int takes more"),
        ("int", "1", "int takes int or bytes, got str"),
        ("str", 1, "str takes str or bytes, got int"),
        ("uint8", 256, "out of bounds"),
        ("json", {1, 2}, "not JSON serializable"),
        ("ndarray", [1], "takes a numpy.ndarray or bytes, got list"),
        ("ndarray", np.zeros(()), "1 to 63 axes"),
        ("ndarray", np.zeros((2, 0)), "none of length 0"),
        ("ndarray", np.zeros(2, "c8"), "does not take arrays of complex64"),
        ("ndarray:int32", np.zeros(2), "does not take arrays of float64"),
        ("ndarray:int32:2", np.zeros(3, np.int32), r"does not take arrays of shape \(3,\)"),
        ("ndarray", np.zeros((1,) * 64) if np.__version__ >= "2" else np.zeros(()), "1 to 63 axes"),
        ("jpeg", np.zeros((3, 3)), "takes PIL images or bytes"),
        ("list[png]", [1], "takes PIL images"),
    ],
)
def test_values_of_another_kind_are_refused(name, value, message):
    with pytest.raises((TypeError, ValueError, OverflowError), match=message):
        encoding(name).encode(value)
