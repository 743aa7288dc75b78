"""Decoding images: webdataset's layouts and values for every kind of image, JPEG's through libjpeg-turbo."""

import io
import os
import pickle
import subprocess
import sys
import warnings

import numpy as np
import PIL.EpsImagePlugin
import PIL.features
import PIL.Image
import pytest
import simplejpeg
import torch
import webdataset
from hypothesis import given
from hypothesis import strategies as st

from mpwds.pipeline.decoding.fields import IMAGE_EXTENSIONS
from mpwds.pipeline.decoding.images import ImageDecoder, decode_jpeg, imagehandler
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


def test_extensions_of_images_are_decoded_whatever_they_hold_and_others_left_to_others():
    for key in (".png", ".mask.png", ".PNG", ".jpg", ".webp"):
        assert ImageDecoder("l8")(key, IMAGES["L"]).shape == (5, 7)
    for key in (".cls", ".png.txt", ".pngx", "."):
        assert ImageDecoder("l8")(key, IMAGES["L"]) is None


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


# Both are libjpeg-turbo where Pillow comes as a wheel; other builds of Pillow may round differently.
TOLERANCE = 0 if PIL.features.check_feature("libjpeg_turbo") else 2

NOISE = np.random.default_rng(0).integers(0, 256, (7, 9, 3), np.uint8)
IMAGE = PIL.Image.fromarray(NOISE).resize((77, 53), PIL.Image.Resampling.BICUBIC)


def sampled(subsampling):
    return simplejpeg.encode_jpeg(np.ascontiguousarray(IMAGE), colorsubsampling=subsampling)


FAST = {
    **{subsampling: sampled(subsampling) for subsampling in ("444", "422", "420", "440", "411")},
    "progressive": stored(IMAGE, progressive=True),
    "restart markers": stored(IMAGE, restart_marker_blocks=3),
    "RGB": stored(IMAGE, keep_rgb=True),
    "one pixel": stored(IMAGE.crop((0, 0, 1, 1))),
    "grey": stored(IMAGE.convert("L")),
    "trailing bytes": stored(IMAGE) + b"garbage",
}
SLOW = {
    "CMYK": stored(IMAGE.convert("CMYK")),
    "no end": stored(IMAGE)[:-2],
    "no jpeg": b"\xff\xd8\xffnothing",
}


def outcome(decode, data):
    try:
        result = decode(".jpg", data)
    except Exception as error:
        return type(error), str(error) if isinstance(error, OSError) else ""
    return result.shape, result.dtype, result.tobytes()


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
@pytest.mark.parametrize("name", FAST)
def test_the_pixels_are_those_of_pillow(name, mode):
    pixels = decode_jpeg(FAST[name], mode)
    if mode == "L" and name != "grey":
        assert pixels is None
        return
    expected = np.asarray(PIL.Image.open(io.BytesIO(FAST[name])).convert(mode))
    assert (pixels.dtype, pixels.shape) == (np.uint8, expected.shape)
    assert np.abs(pixels.astype(int) - expected).max() <= TOLERANCE
    assert pixels.flags.writeable
    assert pixels.flags.c_contiguous


@pytest.mark.parametrize("name", SLOW)
def test_what_differs_from_pillow_is_left_to_it(name):
    assert decode_jpeg(SLOW[name], "RGB") is None


@pytest.mark.parametrize("spec", ["l8", "rgb8", "rgba8", "l", "rgb", "rgba"])
@pytest.mark.parametrize("data", [*FAST.values(), SLOW["CMYK"]], ids=[*FAST, "CMYK"])
def test_decoded_images_are_webdatasets(spec, data):
    ours, theirs = ImageDecoder(spec)(".jpg", data), webdataset.imagehandler(spec)(".jpg", data)
    scale = 1 if ours.dtype == np.uint8 else 1 / 255
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert np.abs(ours.astype(float) - theirs).max() <= TOLERANCE * scale


@given(cut=st.integers(0, len(FAST["420"]) - 1))
def test_a_truncated_image_ends_as_in_pillow(cut):
    data = FAST["420"][:cut]
    assert outcome(ImageDecoder("rgb8"), data) == outcome(without_turbo("rgb8"), data)


@given(position=st.integers(0, len(FAST["420"]) - 1), byte=st.integers(0, 255))
def test_a_damaged_image_ends_as_in_pillow(position, byte):
    data = bytearray(FAST["420"])
    data[position] = byte
    data = bytes(data)
    assert outcome(ImageDecoder("rgb8"), data) == outcome(without_turbo("rgb8"), data)


def without_turbo(spec):
    decode = ImageDecoder(spec)

    def with_pillow_alone(key, data):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("mpwds.pipeline.decoding.images.decode_jpeg", lambda *arguments: None)
            return decode(key, data)

    return with_pillow_alone


def test_an_image_of_false_size_is_refused_as_by_pillow(monkeypatch):
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(PIL.Image.DecompressionBombError):
        ImageDecoder("rgb8")(".jpg", FAST["420"])
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", None)
    assert ImageDecoder("rgb8")(".jpg", FAST["420"]).shape == (53, 77, 3)


def test_memoryviews_are_decoded():
    assert np.array_equal(decode_jpeg(memoryview(FAST["420"]), "RGB"), decode_jpeg(FAST["420"], "RGB"))


def test_without_simplejpeg_pillow_decodes():
    program = (
        "import sys; sys.modules['simplejpeg'] = None\n"
        "from mpwds.pipeline.decoding.images import ImageDecoder\n"
        "sys.stdout.buffer.write(ImageDecoder('rgb8')('.jpg', sys.stdin.buffer.read()).tobytes())"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], input=FAST["420"], capture_output=True, check=True
    )
    pixels = np.frombuffer(result.stdout, np.uint8).reshape(53, 77, 3).astype(int)
    assert np.abs(pixels - decode_jpeg(FAST["420"], "RGB")).max() <= TOLERANCE
