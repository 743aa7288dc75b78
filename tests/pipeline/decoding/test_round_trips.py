"""What is written under an extension is decoded to the same value, here and by webdataset."""

import sys

import cbor2
import numpy as np
import PIL.Image
import pytest
import torch
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from webdataset.tariterators import group_by_keys, tar_file_iterator

from mpwds import WebDataset
from mpwds.pipeline.decoding.decoders import Decoder, decoders
from mpwds.pipeline.decoding.fields import IMAGE_EXTENSIONS
from mpwds.pipeline.stages.decode import decode
from mpwds.storage.writing.encoders import default_handlers, encode_field
from mpwds.storage.writing.tar_writer import TarWriter
from tests.pipeline.conftest import plain

small = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = st.none() | st.booleans() | small | st.floats(allow_nan=False) | texts
structures = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
packable = structures.filter(lambda value: not isinstance(value, str))  # a string is stored as it is
objects = (packable | st.sets(small, max_size=3) | st.tuples(small, texts)).map(
    lambda value: {"value": value}
)
shapes = hnp.array_shapes(min_dims=1, max_dims=3, max_side=3)
arrays = hnp.arrays(st.sampled_from(["u1", "i2", "i8", "f2", "f4", "f8"]), shapes)
pixels = st.sampled_from([(3, 5), (3, 5, 3)]).flatmap(lambda shape: hnp.arrays("u1", shape))

STRATEGIES = {
    "cls cls2 id index inx": st.integers(),
    "txt text transcript": texts,
    "json jsn": packable,
    "pyd pickle pkl": objects,
    "pth": packable | arrays.map(torch.from_numpy),
    "npy": arrays,
    "npz": st.dictionaries(st.sampled_from("abc"), arrays),
    "ten tenbin tb": st.lists(arrays, max_size=3),
    "mp msg msgpack cbor": packable,
    "png bmp webp ppm pnm tif tiff": pixels,
    "pgm": hnp.arrays("u1", (3, 5)),
    "pbm": hnp.arrays("?", (3, 5)).map(lambda bits: bits * np.uint8(255)),
    "jpg jpeg": st.integers(0, 255).map(lambda grey: np.full((3, 5, 3), grey, np.uint8)),
}
VALUES = {extension: values for extensions, values in STRATEGIES.items() for extension in extensions.split()}
UNDECODED = {"class", "count", "html", "htm", "img", "image"}  # they stay bytes to webdataset, too


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("extension", VALUES)
@settings(max_examples=8)
@given(data=st.data())
def test_every_value_comes_back(extension, suffix, data):
    value = data.draw(VALUES[extension])
    field = f"x.{extension}{suffix}"
    spec = "l8" if isinstance(value, np.ndarray) and value.ndim == 2 else "rgb8"
    decoded = Decoder(spec, allow_pickle=True)({field: memoryview(encode_field(field, value))})
    assert plain(decoded[field]) == plain(value)


def test_no_type_is_missing():
    assert set(VALUES) == set(default_handlers) - UNDECODED
    assert set(VALUES) == set(decoders) | set(default_handlers) & IMAGE_EXTENSIONS
    for field in UNDECODED:
        assert Decoder("rgb8")({field: b"1"}) == {field: b"1"}


def test_four_channels_come_back():
    rgba = np.arange(60, dtype=np.uint8).reshape(3, 5, 4)
    assert np.array_equal(Decoder("rgba8")({"png": encode_field("png", rgba)})["png"], rgba)


@pytest.mark.parametrize("scale", [np.float32, np.float64, torch.tensor])
def test_floats_come_back_to_within_a_255th(scale):
    image = np.random.default_rng(0).random((4, 5, 3))
    decoded = Decoder("rgb")({"png": encode_field("png", scale(image))})["png"]
    assert np.abs(decoded - image).max() <= 1 / 255


# ------------------------------------------------------------------- agreement with webdataset on files

GRADIENT = np.arange(60, dtype=np.uint8).reshape(4, 5, 3) * 4
FIELDS = {
    "cls": 7,
    "index": -1,
    "txt": "été",
    "json": {"a": [1, None]},
    "npy": np.arange(6.0).reshape(2, 3),
    "npz": {"a": np.arange(3)},
    "ten": [np.arange(3.0), np.arange(2)],
    "tb": [np.ones(1)],
    "mp": {"a": [1, b"c"]},
    "cbor": {"a": [1, b"c", 2.5]},
    "pyd": {"a": (1, {2})},
    "pickle": [None],
    "pth": {"a": [1.5, "x"]},
    "left.png": GRADIENT,
    "right.jpg": GRADIENT / 255.0,
    "mask.ppm": GRADIENT,
    "x.txt.gz": "packed" * 9,
    "y.npy.gz": np.eye(2),
    "class": 3,
    "html": "<p>",
    "bin": b"\x00\xff",
}
SAMPLES = [{"__key__": f"train/{index:04d}", **FIELDS, "cls": index} for index in range(4)]


@pytest.fixture(autouse=True)
def cbor(monkeypatch):
    monkeypatch.setitem(sys.modules, "cbor", cbor2)  # the package that webdataset wants is no longer kept up


@pytest.fixture(params=[TarWriter, webdataset.TarWriter])
def shard(request, tmp_path):
    with request.param(str(tmp_path / "x.tar")) as sink:
        for sample in SAMPLES:
            sink.write(sample)
    return str(tmp_path / "x.tar")


def comparable(samples):
    """The samples without what each reader adds for itself."""
    return [
        {
            field: plain(np.asarray(value) if isinstance(value, PIL.Image.Image) else value)
            for field, value in sample.items()
            if field == "__key__" or field[:2] != "__"
        }
        for sample in samples
    ]


def read_by_webdataset(shard):
    with open(shard, "rb") as stream:  # theirs leaves the files that it opens to the garbage collector
        files = [{**file, "__url__": shard} for file in tar_file_iterator(stream)]
    return list(group_by_keys(files))


def test_both_read_the_same_bytes(shard):
    read = comparable(WebDataset(shard))
    assert [sample["__key__"] for sample in read] == [sample["__key__"] for sample in SAMPLES]
    assert read == comparable(read_by_webdataset(shard))


@pytest.mark.parametrize("spec", ["rgb8", "rgb", "l", "rgba8", "torchrgb", "pil"])
def test_both_decode_the_same_values(shard, spec):
    decoded = comparable(WebDataset(shard).compose(decode(spec, allow_pickle=True)))
    theirs = webdataset.autodecode.Decoder([webdataset.imagehandler(spec)])
    assert [sample["cls"] for sample in decoded] == [0, 1, 2, 3]
    assert decoded == comparable(map(theirs, read_by_webdataset(shard)))
