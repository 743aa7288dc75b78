"""Decoding images: webdataset's layouts and values for every specification and every kind of image."""

import os
import pickle
import sys
import warnings

import numpy as np
import PIL.EpsImagePlugin
import PIL.Image
import pytest
import torch
import webdataset

from mpwds.pipeline.decoding.fields import IMAGE_EXTENSIONS
from mpwds.pipeline.decoding.images import ImageDecoder, imagehandler
from tests.pipeline.decoding.files import stored

SPECS = list(webdataset.autodecode.imagespecs)
GENERATOR = np.random.default_rng(0)
PIXELS = GENERATOR.integers(0, 256, (5, 7, 4), np.uint8)


def image_of(mode, image_format="PNG"):
    if mode == "I;16":
        image = PIL.Image.fromarray(PIXELS[:, :, 0].astype(np.uint16) * 257)
    else:
        opaque = PIL.Image.fromarray(PIXELS[:, :, :3])
        image = PIL.Image.fromarray(PIXELS) if mode == "RGBA" else opaque.convert(mode)
    return stored(image, image_format)


def iptc_holding(data):
    def field(record, tag, value):
        return b"\x1c" + bytes([record, tag]) + len(value).to_bytes(2, "big") + value

    size = [(7).to_bytes(2, "big"), (5).to_bytes(2, "big")]
    layout = [(3, 60, b"\1\0"), (3, 20, size[0]), (3, 30, size[1]), (3, 120, b"\5")]
    pieces = [data[start : start + 8192] for start in range(0, len(data), 8192)]
    return b"".join(field(*part) for part in layout) + b"".join(field(8, 10, piece) for piece in pieces)


IMAGES = {mode: image_of(mode) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")}
IMAGES["CMYK jpeg"] = image_of("CMYK", "JPEG")
IMAGES["grey jpeg"] = image_of("L", "JPEG")


def as_array(value):
    return value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", IMAGES)
def test_values_layout_and_type_are_those_of_webdataset(spec, name):
    ours = ImageDecoder(spec)(".png", IMAGES[name])
    theirs = webdataset.imagehandler(spec)(".png", IMAGES[name])
    assert isinstance(ours, type(theirs))
    assert as_array(ours).dtype == as_array(theirs).dtype
    assert as_array(ours).shape == as_array(theirs).shape
    assert np.array_equal(as_array(ours), as_array(theirs))


@pytest.mark.parametrize("spec", SPECS)
def test_results_are_writable_and_contiguous(spec):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = ImageDecoder(spec)(".png", IMAGES["RGB"])
    if spec.startswith("pil"):
        result.putpixel((0, 0), 7 if result.mode == "L" else (7,) * len(result.getbands()))
    else:
        result[0] = 1
        assert as_array(result).flags.c_contiguous


def test_the_specification_ignores_case():
    assert ImageDecoder("RGB8")(".png", IMAGES["L"]).shape == (5, 7, 3)
    assert repr(ImageDecoder("RGB8")) == "ImageDecoder('rgb8')"


def test_tensors_without_torch_are_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="tensors need torch: pip install torch, or decode to arrays"):
        ImageDecoder("torch")(".png", IMAGES["L"])


def test_the_orientation_in_exif_is_ignored():
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    data = stored(PIL.Image.fromarray(PIXELS[:, :, :3]), exif=exif)
    assert ImageDecoder("rgb8")(".jpg", data).shape == (5, 7, 3)


@pytest.mark.parametrize("key", [".png", ".mask.png", ".PNG", ".jpg", ".webp"])
def test_extensions_of_images_are_decoded_whatever_they_hold(key):
    assert ImageDecoder("l8")(key, IMAGES["L"]).shape == (5, 7)


@pytest.mark.parametrize("key", [".eps", ".png"])
@pytest.mark.parametrize("image_format", ["EPS", "IPTC"])
def test_postscript_is_never_executed_whatever_its_name(tmp_path, monkeypatch, key, image_format):
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/executed\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(PIL.EpsImagePlugin, "gs_binary", None)
    data = image_of("RGB", "EPS")
    if image_format == "IPTC":
        data = iptc_holding(data)
    with pytest.raises(ValueError, match=f"{image_format} images are not decoded"):
        ImageDecoder("rgb8")(key, data)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("key", [".cls", ".png.txt", ".pngx", "."])
def test_other_extensions_are_left_to_others(key):
    assert ImageDecoder("l8")(key, IMAGES["L"]) is None


def test_the_extensions_may_be_chosen():
    decode = imagehandler("l8", ["Depth"])
    assert decode(".depth", IMAGES["L"]).shape == (5, 7)
    assert decode(".png", IMAGES["L"]) is None


def test_no_extension_of_webdataset_is_missing():
    assert set(webdataset.autodecode.IMAGE_EXTENSIONS) <= IMAGE_EXTENSIONS


def test_an_image_decoder_can_be_pickled():
    assert pickle.loads(pickle.dumps(ImageDecoder("rgb8")))(".png", IMAGES["L"]).shape == (5, 7, 3)


def test_a_decoded_pil_image_can_be_pickled():
    image = ImageDecoder("pil")(".png", IMAGES["RGB"])
    assert pickle.loads(pickle.dumps(image)).tobytes() == image.tobytes()
