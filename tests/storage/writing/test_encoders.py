"""Encoding fields: the bytes that webdataset writes, or an error that names the field."""

import gzip
import io
import json
import pickle
import sys
import time

import cbor2
import ml_dtypes
import msgpack
import numpy as np
import PIL.Image
import pytest
import torch
from webdataset.writer import default_handlers, encode_based_on_extension1

from mpwds import tenbin
from mpwds.storage.writing.encoders import encode_field, make_encoder, make_handlers

GRADIENT = np.arange(48, dtype=np.uint8).reshape(4, 4, 3) * 5


def webdataset_bytes(name, value):
    return bytes(encode_based_on_extension1(value, name, default_handlers))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cls", 7),
        ("seg.cls", np.int64(-3)),
        ("id", 2**70),
        ("txt", "été"),
        ("caption.html", "<p>"),
        ("json", {"a": [1, 2.5, None]}),
        ("json", "a string is written as it is"),
        ("npy", np.arange(6).reshape(2, 3)),
        ("npz", {"a": np.arange(3), "b": np.zeros((2, 2), np.float32)}),
        ("ten", np.arange(6, dtype=np.float32)),
        ("tb", [np.arange(6, dtype=np.float32), np.arange(2)]),
        ("mp", {"a": [1, "b", b"c"]}),
        ("pyd", {"a": (1, None)}),
        ("x.pickle", {"a": (1, None)}),
        ("pth", {"a": torch.arange(3)}),
        ("npy", np.array([{"a": 1}, None])),
        ("cbor", {"a": [1, "b", b"c", None, 2.5]}),
        ("img", GRADIENT),
        ("image", GRADIENT),
        ("png", GRADIENT),
        ("png", GRADIENT[:, :, 0]),
        ("mask.png", np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)),
        ("png", PIL.Image.fromarray(GRADIENT).convert("RGBA")),
        ("jpg", GRADIENT),
        ("jpeg", GRADIENT / 255.0),
        ("ppm", GRADIENT),
        ("tiff", GRADIENT),
        ("PNG", GRADIENT),
        ("png", GRADIENT[:, :, 0] > 50),
        ("tiff", GRADIENT[:, :, 0] > 50),
        ("jpg", GRADIENT[:, :, 0] > 50),
    ],
)
def test_writes_the_bytes_that_webdataset_writes(monkeypatch, name, value):
    monkeypatch.setitem(sys.modules, "cbor", cbor2)  # the package that webdataset wants is no longer kept up
    assert encode_field(name, value) == webdataset_bytes(name, value)


@pytest.mark.parametrize("name", ["png", "cls", "unknown", "pyd", "anything.at.all"])
@pytest.mark.parametrize("data", [b"\x00\xff", bytearray(b"\x00\xff"), memoryview(b"\x00\xff")])
def test_bytes_are_kept_whatever_the_name(name, data):
    assert encode_field(name, data) == b"\x00\xff"


@pytest.mark.parametrize(("name", "value"), [("json.gz", {"a": 1}), ("bin.gz", b"data"), ("txt.gz", "text")])
def test_gz_compresses(name, value):
    assert gzip.decompress(encode_field(name, value)) == encode_field(name.removesuffix(".gz"), value)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_float_pixels_that_come_from_uint8_are_written_without_loss(dtype):
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
    written = encode_field("png", grey.astype(dtype) / dtype(255))
    assert np.array_equal(np.asarray(PIL.Image.open(io.BytesIO(written))), grey)


@pytest.mark.parametrize("name", ["png", "bmp", "webp", "tiff", "ppm", "pnm"])
def test_lossless_formats_keep_every_pixel(name):
    assert np.array_equal(np.asarray(PIL.Image.open(io.BytesIO(encode_field(name, GRADIENT)))), GRADIENT)


@pytest.mark.parametrize("name", ["png", "webp", "tiff"])
def test_the_colours_of_transparent_pixels_are_kept(name):
    pixels = np.dstack([GRADIENT, np.zeros((4, 4), np.uint8)])
    assert np.array_equal(np.asarray(PIL.Image.open(io.BytesIO(encode_field(name, pixels)))), pixels)


@pytest.mark.parametrize(("name", "mode"), [("pbm", "1"), ("pgm", "L"), ("ppm", "RGB")])
def test_the_pnm_formats_hold_what_their_names_say(name, mode):
    assert PIL.Image.open(io.BytesIO(encode_field(name, GRADIENT))).mode == mode


@pytest.mark.parametrize("name", ["png", "pgm", "tif"])
def test_pixels_of_16_bits_are_kept(name):
    grey = np.arange(0, 65536, 4096, dtype=np.uint16).reshape(4, 4)
    written = encode_field(name, PIL.Image.fromarray(grey))
    assert np.array_equal(np.asarray(PIL.Image.open(io.BytesIO(written))), grey)


def test_bool_pixels_are_black_or_white():
    colors = GRADIENT > 50
    assert encode_field("ppm", colors) == encode_field("ppm", colors.astype(np.uint8) * 255)
    assert encode_field("png", colors[:, :, :1]) == encode_field("png", colors[:, :, 0])


def test_one_channel_is_a_grey_image():
    assert encode_field("png", GRADIENT[:, :, :1]) == encode_field("png", GRADIENT[:, :, 0])


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("npy", torch.arange(6).reshape(2, 3)),
        ("ten", torch.ones(3, requires_grad=True)),
        ("png", torch.zeros(4, 5, 3, dtype=torch.uint8)),
        ("cls", torch.tensor(7)),
    ],
)
def test_tensors_are_written_as_arrays(name, tensor):
    assert encode_field(name, tensor) == encode_field(name, tensor.detach().numpy())


def test_npz_takes_tensors():
    with np.load(io.BytesIO(encode_field("npz", {"a": torch.arange(3)}))) as arrays:
        assert arrays["a"].tolist() == [0, 1, 2]


def test_tenbin_takes_lists_of_numbers_and_bfloat16():
    assert tenbin.decode_buffer(encode_field("ten", [[1.5, 2.5]]))[0].tolist() == [1.5, 2.5]
    encoded = encode_field("ten", torch.ones(2, dtype=torch.bfloat16))
    assert torch.equal(tenbin.decode_buffer(encoded, output="torch")[0], torch.ones(2, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("cls", 1.5, "1.5 is no integer, which readers expect here: use json or txt"),
        ("cls", np.arange(3), "no integer"),
        ("txt", 7, "expected str or bytes"),
        ("json", {1, 2}, "not JSON serializable"),
        ("mp", {1, 2}, "set"),
        ("npy", {"a": 1}, "dict makes an array of Python objects"),
        ("npz", {"a": [None, 1]}, r"'a' \(list\) makes an array of Python objects"),
        ("npz", {1: np.zeros(3)}, "dictionary of arrays"),
        ("cbor", object(), "CBOREncodeError"),
        ("pyd", lambda: None, "pickle"),
        ("pth", lambda: None, "pickle"),
        ("npz", np.arange(3), "dictionary of arrays"),
        ("ten", np.array(["a"]), "tenbin"),
        ("png", np.array([[0.0, 1.5]]), r"reach from 0\.0 to 1\.5"),
        ("png", np.array([[0.0, np.nan]]), "floats in"),
        ("png", np.zeros((2, 2), np.int64), "int64"),
        ("png", np.zeros((2, 2, 3), np.uint16), "uint16 of one channel"),
        ("png", np.zeros((3, 8, 9), np.uint8), r"\(3, 8, 9\).*permute"),
        ("jpg", np.zeros((4, 4, 4), np.uint8), "RGBA"),
        ("ppm", np.zeros((4, 4, 4), np.uint8), "alpha channel"),
        ("bmp", np.zeros((4, 4, 4), np.uint8), "alpha channel"),
        ("pgm", PIL.Image.new("F", (4, 4)), "cut F pixels to 8 bits"),
        ("pbm", PIL.Image.new("I", (4, 4)), "cut I pixels to 8 bits"),
        ("webp", PIL.Image.new("I;16", (4, 4)), "cut I;16 pixels to 8 bits"),
        ("ten", np.ma.masked_equal([1, 2], 2), "mask"),
        ("npy", np.zeros(2, ml_dtypes.bfloat16), "bfloat16: use ten"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_naming_the_field(name, value, message):
    with pytest.raises(ValueError, match=f"(?s)field 'x.{name}' cannot be encoded.*{message}"):
        encode_field(f"x.{name}", value)


def test_a_tensor_that_is_part_of_another_is_stored_alone():
    whole = torch.zeros(1000, 100)
    assert len(encode_field("pth", whole[7])) < 10_000
    assert torch.load(io.BytesIO(encode_field("pth", whole[7]))).shape == (100,)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_part_of_a_tensor_keeps_whether_it_has_a_gradient(requires_grad):
    part = torch.zeros(10, 10, requires_grad=requires_grad)[3]
    assert torch.load(io.BytesIO(encode_field("pth", part))).requires_grad is requires_grad


@pytest.mark.parametrize("name", ["pyd", "pth", "npz", "cbor", "mp", "webp", "tiff", "json.gz"])
def test_the_bytes_do_not_depend_on_the_time(monkeypatch, name):
    value = {"a": GRADIENT} if name in ("npz", "pyd", "pth") else GRADIENT
    value = {"a": [1]} if name in ("cbor", "mp", "json.gz") else value
    first = encode_field(name, value)
    monkeypatch.setattr(time, "time", lambda: 2e9)
    monkeypatch.setattr(time, "localtime", lambda *_: time.gmtime(2e9))
    assert encode_field(name, value) == first


def test_an_encoder_may_be_a_function_of_the_sample():
    def encoder(sample):
        return {**sample, "n": json.dumps(sample["n"]).encode()}

    assert make_encoder(encoder)({"__key__": "a", "n": 1})["n"] == b"1"


def test_an_encoder_dictionary_decides_by_the_last_extension():
    encode = make_encoder({"pair": lambda value: msgpack.packb(list(value))})
    assert encode({"__key__": "a", "x.PAIR": (1, 2)})["x.PAIR"] == b"\x92\x01\x02"
    compressed = gzip.compress(b"\x92\x01\x02", mtime=0)
    assert encode({"__key__": "a", "x.pair.gz": (1, 2)})["x.pair.gz"] == compressed
    with pytest.raises(ValueError, match="'cls' cannot be encoded.*not one of pair"):
        encode({"__key__": "a", "cls": 7})


def test_a_function_of_the_callers_gets_strings_and_its_errors_name_the_field():
    encode = make_encoder({**make_handlers(), "hex": bytes.fromhex})
    assert encode({"__key__": "a", "hex": "ff", "json": "text", "cls": 7}) == {
        "__key__": "a",
        "hex": b"\xff",
        "json": b"text",
        "cls": b"7",
    }
    with pytest.raises(ValueError, match="field 'hex' cannot be encoded from str: ValueError: non-hex"):
        encode({"hex": "x"})


def test_the_table_has_every_extension_of_webdatasets_and_each_call_makes_a_new_one():
    assert set(default_handlers) <= set(make_handlers())
    assert make_handlers() is not make_handlers()


def test_an_encoder_can_be_pickled():
    for spec in (True, False, make_handlers()):
        encode = pickle.loads(pickle.dumps(make_encoder(spec)))
        assert encode({"__key__": "a", "txt": b"7"}) == {"__key__": "a", "txt": b"7"}


@pytest.mark.parametrize(("name", "package", "extra"), [("cbor", "cbor2", "cbor"), ("png", "PIL", "images")])
def test_a_missing_package_names_the_extra(monkeypatch, name, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.Image", None)
    with pytest.raises(ImportError, match=rf"pip install 'mpwds\[{extra}\]'"):
        encode_field(name, GRADIENT)
