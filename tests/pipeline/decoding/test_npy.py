"""NumPy's files: what NumPy reads, from any buffer, and never more memory than the data is worth."""

import contextlib
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mpwds.pipeline.decoding.fields import npy_loads

dtypes = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(),
    hnp.datetime64_dtypes(),
    hnp.unicode_string_dtypes(),
    hnp.byte_string_dtypes(),
    hnp.array_dtypes(hnp.integer_dtypes(), max_size=2),
)
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


def saved(array, version=None):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version)
    return stream.getvalue()


def same(left, right):
    return (
        (left.dtype, left.shape) == (right.dtype, right.shape)
        and left.flags.f_contiguous == right.flags.f_contiguous
        and left.tobytes() == right.tobytes()
    )


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
@settings(max_examples=50)
@given(data=st.data(), dtype=dtypes, shape=shapes, order=st.sampled_from("CF"), long=st.booleans())
def test_loads_what_numpy_loads(data, dtype, shape, order, long):
    array = np.asarray(data.draw(hnp.arrays(dtype, shape)), order=order)
    written = saved(array, (2, 0) if long and array.dtype.names is None else None)
    loaded = npy_loads(memoryview(written))
    assert same(loaded, np.load(io.BytesIO(written)))
    assert loaded.flags.writeable
    assert not np.shares_memory(loaded, np.frombuffer(written, "u1"))


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
def test_the_third_version_of_the_format_is_read():
    array = np.zeros(2, np.dtype([("長さ", "<f4")]))
    assert saved(array)[6] == 3
    assert same(npy_loads(saved(array)), array)


@pytest.mark.filterwarnings("ignore:invalid escape sequence")  # NumPy reads the header as Python's text
@settings(max_examples=150)
@given(position=st.integers(0, 200), byte=st.integers(0, 255))
def test_damage_is_an_error_or_another_array_of_that_size_at_most(position, byte):
    written = bytearray(saved(np.arange(8)))
    written[position % len(written)] = byte
    with contextlib.suppress(ValueError):
        assert npy_loads(bytes(written)).nbytes <= len(written)


def test_a_false_shape_does_not_take_memory():
    written = saved(np.zeros(3)).replace(b"(3,)", b"(9999999999999,)"[:16])
    with pytest.raises(ValueError, match="takes 79999999999992 bytes, .* are there"):
        npy_loads(written)


def test_what_is_no_npy_file_is_an_error():
    for data in (b"", b"nothing", b"\x93NUMPY", b"\x93NUMPY\x09\0" + bytes(10)):
        with pytest.raises(ValueError, match=r"magic|EOF|version|header"):
            npy_loads(data)
