"""Images of one size: the pixels that Pillow and torchvision would make, from every kind of image."""

import io
import pickle
import random

import numpy as np
import PIL.Image
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st

from mpwds import RandomResizedCrop, ResizeCenterCrop, Resized
from mpwds.pipeline.decoding import images
from mpwds.pipeline.decoding.resizing import Crop, _aligned
from tests.pipeline.decoding.files import stored

BILINEAR = PIL.Image.Resampling.BILINEAR
NOISE = np.random.default_rng(0).integers(0, 256, (32, 42, 3), np.uint8)


def photo(width=500, height=375):
    return PIL.Image.fromarray(NOISE).resize((width, height), PIL.Image.Resampling.BICUBIC)


def opened(data):
    return PIL.Image.open(io.BytesIO(data)).convert("RGB")


def by_pillow(image, crop):
    """What Pillow makes of the same crop."""
    box = (crop.left, crop.top, crop.left + crop.width, crop.top + crop.height)
    made = np.asarray(image.crop(box).resize(crop.size[::-1], BILINEAR)).astype(int)
    if crop.inner is not None:
        top, left, height, width = crop.inner
        made = made[top : top + height, left : left + width]
    return made[:, ::-1] if crop.flipped else made


def decibels(found, expected):
    error = np.mean((found.astype(float) - expected) ** 2)
    return 100.0 if error == 0 else 10 * np.log10(255**2 / error)


@pytest.fixture(params=[True, False], ids=["simplejpeg", "Pillow"])
def either_decoder(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(images, "_simplejpeg", lambda: None)


@pytest.mark.usefixtures("either_decoder")
@pytest.mark.parametrize("seed", range(6))
def test_a_crop_is_what_pillow_makes_of_it(seed):
    data = stored(photo(), quality=90)
    random.seed(seed)
    image = RandomResizedCrop((190, 260)).image(data)
    found, crop = image.made(), image.crop
    assert (found.shape, found.dtype, found.flags.writeable) == ((190, 260, 3), np.uint8, True)
    assert np.abs(found - by_pillow(opened(data), crop)).max() <= 1


@pytest.mark.parametrize(("factor", "extent"), [(1, 447), (2, 448), (2, 895), (4, 896), (8, 1792), (8, 2500)])
def test_a_large_crop_is_decoded_smaller_and_hardly_differs(factor, extent, monkeypatch):
    sizes = []
    decode = images.decode_jpeg
    monkeypatch.setattr(
        "mpwds.pipeline.decoding.resizing.decode_jpeg",
        lambda *args, **options: sizes.append(options["reduced"]) or decode(*args, **options),
    )
    data = stored(photo(extent + 7, extent), quality=95)
    image = RandomResizedCrop(224, scale=(1, 1), ratio=(1, 1), flip=0).image(data)
    found, crop = image.made(), image.crop
    assert sizes == [(-(-extent // factor), -(-(extent + 7) // factor))]
    assert decibels(found, by_pillow(opened(data), crop)) > 38
    assert all(place % factor == 0 for place in (crop.top, crop.left))


@pytest.mark.parametrize("subsampling", ["444", "422", "440", "420", "411"])
def test_colours_stay_as_sharp_whatever_their_subsampling(subsampling):
    pixels = np.asarray(photo(600, 600)).copy()
    pixels[..., 0] = np.abs(np.arange(600) % 60 - 30) * 8  # stripes of red
    data = simplejpeg.encode_jpeg(pixels, 95, colorsubsampling=subsampling)
    for size in (300, 150, 75):
        image = Resized((size, size)).image(data)
        assert decibels(image.made(), by_pillow(opened(data), image.crop)) > 34


@pytest.mark.parametrize("size", [8, 64, 224])
@pytest.mark.parametrize("options", [{"subsampling": 0}, {"subsampling": 1}, {"restart_marker_blocks": 5}])
def test_rows_below_a_crop_are_not_decoded_and_change_nothing(options, size, monkeypatch):
    data = stored(photo(), quality=90, **options)
    random.seed(size)
    found = [RandomResizedCrop(size).image(data) for _ in range(8)]
    heights, decode = [], images.decode_jpeg
    monkeypatch.setattr(
        "mpwds.pipeline.decoding.resizing.decode_jpeg",
        lambda jpeg, *args, **more: (
            heights.append(images.jpeg_header(jpeg)[0]) or decode(jpeg, *args, **more)
        ),
    )
    made = [image.made() for image in found]
    assert all(
        height < image.crop.top + image.crop.height + 72 for height, image in zip(heights, found, strict=True)
    )
    monkeypatch.setattr("mpwds.pipeline.decoding.resizing.first_rows", lambda data, rows: None)
    assert np.array_equal(made, [image.made() for image in found])


@given(
    height=st.integers(1, 3000),
    width=st.integers(1, 3000),
    seed=st.integers(),
    low=st.floats(0.01, 1),
    narrow=st.floats(0.1, 1),
)
def test_a_crop_lies_in_the_image_and_has_the_area_and_the_ratio_asked_for(height, width, seed, low, narrow):
    random.seed(seed)
    top, left, h, w, *_ = RandomResizedCrop(224, scale=(low, 1), ratio=(narrow, 1.5)).crop(height, width)
    assert 0 <= top <= top + h <= height
    assert 0 <= left <= left + w <= width
    assert h * w > 0
    if min(h, w) > 50 and (h, w) != (height, width) and h != height and w != width:
        assert low * 0.95 < h * w / (height * width)
        assert narrow * 0.95 < w / h < 1.5 * 1.05


def test_an_image_that_no_such_crop_fits_into_is_cut_at_its_centre():
    crop = RandomResizedCrop(8, scale=(0.9, 1)).crop(10, 100)
    assert crop[:4] == (0, 43, 10, 13)
    assert RandomResizedCrop(8, scale=(0.9, 1)).crop(100, 10)[:4] == (43, 0, 13, 10)


def test_places_and_flips_are_spread_evenly():
    random.seed(0)
    crops = [RandomResizedCrop(64, flip=0.25).crop(300, 400) for _ in range(4000)]
    assert 0.2 < np.mean([crop.flipped for crop in crops]) < 0.3
    areas = [crop.height * crop.width / 120_000 for crop in crops]
    assert min(areas) < 0.1 < 0.4 < np.mean(areas) < 0.5 < 0.9 < max(areas)
    assert abs(np.mean([crop.top + crop.height / 2 for crop in crops]) - 150) < 5
    assert abs(np.mean([crop.left + crop.width / 2 for crop in crops]) - 200) < 5


@pytest.mark.parametrize("width", [500, 375, 341, 3000])
def test_resize_and_centre_crop_are_those_of_torchvision(width):
    data = stored(photo(width, 375), quality=90)
    found = ResizeCenterCrop(resize=256, size=224)(data)
    height, wide = (256, int(256 * width / 375)) if width >= 375 else (int(256 * 375 / width), 256)
    top, left = round((height - 224) / 2), round((wide - 224) / 2)
    whole = np.asarray(opened(data).resize((wide, height), BILINEAR)).astype(int)
    assert np.abs(found - whole[top : top + 224, left : left + 224]).max() <= 1


@pytest.mark.parametrize(
    ("size", "shape"), [(100, (100, 133, 3)), ((64, 48), (64, 48, 3)), ((375, 500), (375, 500, 3))]
)
def test_resized_keeps_the_ratio_or_makes_the_size_asked_for(size, shape):
    data = stored(photo(), "PNG")
    found = Resized(size)(data)
    assert found.shape == shape
    assert np.abs(found - np.asarray(photo().resize(shape[1::-1], BILINEAR)).astype(int)).max() <= 1


def test_without_antialiasing_pixels_between_the_samples_do_not_count():
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::4] = 255
    for data in (
        stored(PIL.Image.fromarray(stripes), "PNG"),
        stored(PIL.Image.fromarray(stripes), quality=100, subsampling=0),
    ):
        assert np.ptp(Resized((16, 16))(data)) < 30
        assert Resized((16, 16), antialias=False)(data).max() <= 2


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.mark.parametrize("layout", ["HWC", "CHW"])
@pytest.mark.parametrize(("mean", "std"), [(None, None), (MEAN, STD), (MEAN, None), (None, STD)])
def test_floats_are_scaled_and_normalised(layout, mean, std):
    data = stored(photo())
    found = Resized((20, 30), "float32", layout, mean, std)(data)
    expected = (Resized((20, 30))(data) / 255 - (mean or 0)) / (std or 1)
    if layout == "CHW":
        expected = expected.transpose(2, 0, 1)
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_bytes_can_be_laid_out_by_colour():
    data = stored(photo())
    found = Resized((20, 30), layout="CHW")(data)
    assert found.flags.c_contiguous
    assert (found == Resized((20, 30))(data).transpose(2, 0, 1)).all()


PALETTE = photo(60, 40).quantize(16)
KINDS = {
    "grey JPEG": stored(photo(60, 40).convert("L")),
    "CMYK JPEG": stored(photo(60, 40).convert("CMYK")),
    "progressive JPEG": stored(photo(60, 40), progressive=True),
    "PNG with alpha": stored(photo(60, 40).convert("RGBA"), "PNG"),
    "PNG with a palette": stored(PALETTE, "PNG"),
    "black and white": stored(photo(60, 40).convert("1"), "PNG"),
    "WebP": stored(photo(60, 40), "WEBP", lossless=True),
    "one pixel": stored(photo(1, 1)),
    "a line": stored(photo(700, 1)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_images_of_every_kind_become_rgb(kind):
    data = KINDS[kind]
    expected = np.asarray(opened(data).resize((24, 24), BILINEAR)).astype(int)
    assert np.abs(Resized((24, 24))(data) - expected).max() <= 2


def test_of_sixteen_bits_the_upper_eight_count():
    grey = np.arange(0, 65536, 16, dtype=np.uint16).reshape(64, 64)
    found = Resized((64, 64))(stored(PIL.Image.fromarray(grey), "PNG"))
    assert (found == (grey >> 8)[:, :, None]).all()


def test_what_lies_beyond_sixteen_bits_is_cut_off():
    numbers = np.array([[-5, 256, 65535, 1 << 20]], np.int32)
    found = Resized((1, 4))(stored(PIL.Image.fromarray(numbers), "TIFF"))
    assert found[0, :, 0].tolist() == [0, 1, 255, 255]


@given(start=st.integers(0, 40), size=st.integers(1, 9), factor=st.sampled_from([2, 4, 8]))
def test_a_crop_keeps_its_size_where_it_is_moved_to_whole_pixels_of_the_reduced_image(start, size, factor):
    extent = size * factor
    aligned, used = _aligned(Crop(start, 0, extent, extent, (size, size)), (500, 500), 8)
    assert (used, *aligned[1:4]) == (factor, 0, extent, extent)
    assert aligned.top % factor == 0
    assert abs(aligned.top - start) <= factor / 2


@pytest.mark.parametrize("extent", [449, 451, 897, 1793])
def test_a_crop_up_to_the_edge_ends_there_though_the_reduced_image_has_no_whole_pixel_for_it(extent):
    crop, factor = Crop(0, 0, extent, extent, (224, 224)), extent // 224
    aligned, used = _aligned(crop, (extent, extent), 8)
    assert (aligned[:4], used) == ((0, 0, extent, extent), factor)


@pytest.mark.parametrize("extent", [449, 897, 1793])
def test_the_part_of_a_reduced_pixel_at_the_edge_counts_as_a_part(extent):
    data = stored(photo(extent, extent), quality=95)
    image = Resized((224, 224)).image(data)
    assert decibels(image.made(), by_pillow(opened(data), image.crop)) > 44


def test_an_image_that_is_open_already_is_refused():
    with pytest.raises(TypeError, match="it is Image, expected bytes, which resized decodes itself"):
        Resized(8)(photo())


def test_results_share_no_memory():
    data, function = stored(photo(64, 64)), Resized((64, 64))
    first = function(data)
    kept = first.copy()
    function(stored(photo(64, 64).transpose(PIL.Image.Transpose.ROTATE_180)))
    assert (first == kept).all()


@pytest.mark.usefixtures("either_decoder")
def test_images_that_are_damaged_cut_off_or_too_large_are_errors(monkeypatch):
    data = stored(photo())
    with pytest.raises(PIL.UnidentifiedImageError):
        Resized((8, 8))(b"no image")
    with pytest.raises(OSError, match="truncated"):
        Resized((8, 8))(data[:3000])
    with pytest.raises(OSError, match="truncated"):  # though the crop ends above
        RandomResizedCrop((8, 8), scale=(0.01, 0.01))(data[: len(data) * 9 // 10])
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 90_000)
    with pytest.raises(PIL.Image.DecompressionBombError):
        Resized((8, 8))(data)


@pytest.mark.parametrize("resizer", [Resized(224), ResizeCenterCrop()])
def test_an_image_whose_shape_would_make_it_huge_is_an_error(resizer):
    with pytest.raises(ValueError, match="an image of 1 x 60000 pixels would be resized to"):
        resizer(stored(PIL.Image.new("RGB", (60_000, 1)), "PNG"))


@pytest.mark.usefixtures("either_decoder")
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_an_image_that_waits_for_its_batch_holds_no_pixels_of_the_whole(kind):
    data = stored(photo(1200, 900), kind)
    image = Resized((8, 8)).image(data)
    assert len(pickle.dumps(image)) < len(data) + 10_000 < 1200 * 900
    assert np.array_equal(image.made(), Resized((8, 8))(data))
