"""JPEG through libjpeg-turbo: Pillow's pixels, Pillow's errors, whether or not simplejpeg is installed."""

import io
import subprocess
import sys

import numpy as np
import PIL.features
import PIL.Image
import pytest
import simplejpeg
import webdataset
from hypothesis import given
from hypothesis import strategies as st

from mpwds.pipeline.decoding.images import ImageDecoder, decode_jpeg
from tests.pipeline.decoding.files import stored

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
