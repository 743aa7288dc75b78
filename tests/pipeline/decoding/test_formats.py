"""Formats of fields: NumPy's files, data that decompresses to too much, and pickles by permission."""

import contextlib
import gzip
import io
import os
import pickle
import subprocess
import sys
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mpwds.errors import DecodeError, SecurityError
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.decoding import fields
from mpwds.pipeline.decoding.decoders import Decoder, handle_extension
from mpwds.pipeline.decoding.fields import gunzip, npy_loads, torch_loads, unzip
from mpwds.storage.writing.encoders import encode_field

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


MIB = 1 << 20
ZEROS = bytes(16 * MIB)


def npz(**arrays):
    np.savez_compressed(stream := io.BytesIO(), **arrays)
    return stream.getvalue()


def understated(archive):
    """A zip archive that claims to hold little."""
    for size in (len(ZEROS), len(ZEROS) + 128):
        archive = archive.replace(size.to_bytes(4, "little"), (1000).to_bytes(4, "little"))
    return archive


BOMBS = {
    "txt.gz": gzip.compress(ZEROS),
    "bin.gz": gzip.compress(bytes(MIB)) * 16,
    "npz": npz(a=np.zeros(len(ZEROS), "u1")),
    "arrays.npz": npz(**{f"a{n}": np.zeros(MIB, "u1") for n in range(16)}),
}


@pytest.mark.parametrize("field", BOMBS)
def test_a_field_that_decompresses_to_more_than_the_limit_is_an_error(field):
    sample = {"__key__": "a/7", "__url__": "x.tar", field: BOMBS[field]}
    assert len(BOMBS[field]) < MIB
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError) as caught:
            list(DataPipeline([sample]).decode(max_decompressed_bytes=2 * MIB))
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()
    start = (
        f'field "{field}" of sample "a/7" in x.tar cannot be decoded: it decompresses to more than the limit'
    )
    assert str(caught.value).startswith(start)
    assert "decode(max_decompressed_bytes=...)" in str(caught.value)


@pytest.mark.parametrize("field", BOMBS)
def test_a_limit_that_is_just_enough_lets_it_through(field):
    limit = len(ZEROS) + (0 if field.endswith("gz") else 128 * 16)
    assert field.removesuffix(".gz") in "".join(Decoder(max_decompressed_bytes=limit)({field: BOMBS[field]}))


def test_an_archive_that_understates_its_size_takes_no_more_than_it_states():
    data = understated(BOMBS["npz"])
    tracemalloc.start()
    try:
        with pytest.raises(zipfile.BadZipFile):
            unzip(data, 2 * MIB)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()


def test_a_zip_archive_with_another_compression_is_an_error():
    with zipfile.ZipFile(stream := io.BytesIO(), "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a", ZEROS)
    with pytest.raises(DecodeError, match="neither stored nor deflated"):
        unzip(stream.getvalue())


def test_the_members_of_gzip_data_are_joined_and_padding_is_dropped():
    assert gunzip(gzip.compress(b"abc") + gzip.compress(b"def") + bytes(5)) == b"abcdef"
    assert gunzip(memoryview(gzip.compress(b""))) == gunzip(b"") == b""


def test_a_damaged_array_of_an_archive_is_an_error():
    data = bytearray(npz(a=np.arange(1000)))
    data[200] ^= 255
    with pytest.raises(DecodeError):
        Decoder()({"npz": bytes(data)})


@pytest.mark.slow
def test_a_megabyte_that_becomes_a_gigabyte_is_refused_by_default():
    bomb = gzip.compress(ZEROS) * 64
    assert len(bomb) < 2 * MIB
    with pytest.raises(DecodeError, match="decompresses to more than the limit of 536870912 bytes"):
        Decoder()({"txt.gz": bomb})


@pytest.mark.parametrize("field", ["pyd", "pickle", "x.pkl", "pyd.gz", "npy", "npz", "pth"])
def test_pickles_need_permission_in_code(field):
    value = np.array([Special()])
    data = encode_field(field, {"a": value} if field == "npz" else value)
    with pytest.raises(
        DecodeError, match=r"loading it would run .* pass allow_pickle=True to decode\(\)"
    ) as caught:
        Decoder()({"__key__": "k", field: data})
    assert caught.value.field == field
    Decoder(allow_pickle=True)({"__key__": "k", field: data})


class Special:
    pass


def test_a_pickle_that_nobody_decodes_is_no_error():
    data = pickle.dumps(7)
    sample = {"pyd": data, "cls": b"7"}
    assert Decoder(only="cls")(sample) == {"pyd": data, "cls": 7}
    assert Decoder(post=[])(sample) == sample
    assert Decoder(handle_extension("pyd", len))(sample) == {"pyd": len(data), "cls": 7}


def test_nothing_is_run_before_permission_is_looked_at(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    value = {"a": Evil()}
    for field, data in {
        **{name: pickle.dumps(value) for name in ("pyd", "pickle", "pkl")},
        "pth": encode_field("pth", value),
        "npy": encode_field("npy", np.array([value])),
        "npz": encode_field("npz", {"a": np.array([value])}),
    }.items():
        with pytest.raises(DecodeError):
            Decoder()({field: data})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("field", ["pyd", "pth", "npy", "npz"])
def test_the_secure_mode_overrules_permission(monkeypatch, field):
    value = np.array([None])
    data = encode_field(field, {"a": value} if field == "npz" else value)
    decode = Decoder(allow_pickle=True)
    decode({field: data})
    monkeypatch.setenv("WDS_SECURE", "1")
    with pytest.raises(DecodeError, match="secure mode"):
        decode({field: data})


def test_torch_loads_takes_tensors_and_plain_values_without_permission():
    value = {"a": torch.arange(3), "b": [1, "x", (None, 2.5)]}
    loaded = torch_loads(memoryview(encode_field("pth", value)))
    assert torch.equal(loaded["a"], value["a"])
    assert loaded["b"] == value["b"]


def test_torch_loads_runs_the_code_of_a_file_only_with_permission():
    data = encode_field("pth", Special())
    with pytest.raises(DecodeError, match="a pickle of more than tensors and plain values"):
        torch_loads(data)
    assert isinstance(torch_loads(data, allow_pickle=True), Special)


def test_a_user_may_forbid_torch_more_than_weights_in_the_environment(monkeypatch):
    monkeypatch.setattr(fields, "pytorch_weights_only", True)
    with pytest.raises(pickle.UnpicklingError, match="Weights only"):
        torch_loads(encode_field("pth", Special()), allow_pickle=True)


def test_the_environment_is_where_that_is_said():
    program = "from mpwds.pipeline.decoding.fields import pytorch_weights_only; print(pytorch_weights_only)"
    environment = {**os.environ, "WDS_PYTORCH_WEIGHTS_ONLY": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    assert (done.stdout, fields.pytorch_weights_only) == (b"True\n", False)


def test_a_torch_whose_protection_has_a_hole_needs_permission(monkeypatch):
    data = encode_field("pth", torch.arange(3))
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(DecodeError, match=r"unsafe before torch 2.6 \(this is 2.5.1"):
        torch_loads(data)
    assert torch_loads(data, allow_pickle=True).tolist() == [0, 1, 2]


def test_the_secure_mode_refuses_tensors_too(monkeypatch):
    monkeypatch.setenv("WDS_SECURE", "1")
    with pytest.raises(SecurityError, match=r"\(it is for torch.load\) in secure mode"):
        torch_loads(encode_field("pth", torch.arange(3)))


def test_a_damaged_file_is_said_to_be_damaged():
    with pytest.raises(RuntimeError, match="zip archive"):
        torch_loads(encode_field("pth", torch.arange(3))[:-100])
    with pytest.raises(DecodeError, match="it is damaged, or a pickle"):
        torch_loads(b"nothing")
