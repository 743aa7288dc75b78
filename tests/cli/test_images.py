import sys

import numpy as np
import PIL.Image
import pytest

from mpwds.cli.demo.training import fit


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1"])
@pytest.mark.parametrize(("width", "height"), [(8, 8), (100, 30), (3, 200)])
def test_every_image_becomes_a_square_of_the_size_asked_for(picture, saved, mode, width, height):
    pixels = fit(saved(picture(1, width, height).convert(mode), "PNG"), size=24)
    assert (pixels.shape, pixels.dtype) == ((3, 24, 24), np.uint8)


def test_the_middle_is_cut_out_of_what_is_no_square(saved):
    stripes = np.zeros((10, 30, 3), np.uint8)
    stripes[:, 10:20] = 200
    assert (fit(saved(PIL.Image.fromarray(stripes), "PNG"), size=10) == 200).all()


def test_an_image_of_the_right_size_keeps_its_pixels(picture, saved):
    image = picture(2, 16, 16)
    np.testing.assert_array_equal(fit(saved(image, "PNG"), size=16), np.asarray(image).transpose(2, 0, 1))


def test_sixteen_bits_are_scaled_to_eight(saved):
    grey = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    np.testing.assert_array_equal(fit(saved(PIL.Image.fromarray(grey), "PNG"), size=8)[0], grey >> 8)


def test_a_photo_is_turned_as_its_camera_says(saved):
    image = PIL.Image.fromarray(np.repeat(np.array([[0], [255]], np.uint8), 8, axis=1).repeat(4, axis=0))
    exif = image.getexif()
    exif[0x0112] = 3  # upside down
    pixels = fit(saved(image, "PNG", exif=exif), size=8)[0]
    assert pixels[:3].min() > 200
    assert pixels[5:].max() < 50


def test_a_truncated_image_is_an_error(picture, saved):
    data = saved(picture(0, 200, 200), "JPEG")
    with pytest.raises(OSError, match="truncated"):
        fit(data[: len(data) // 2], size=200)


def test_without_pillow_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r"pip install 'mpwds\[images\]'"):
        fit(b"", size=8)


def test_a_program_in_the_place_of_an_image_is_not_run():
    with pytest.raises(ValueError, match="EPS images are not decoded"):
        fit(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n%%EOF\n", size=8)
