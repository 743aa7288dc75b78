import numpy as np
import pytest
import torch

from mpwds.viewing.pictures import SamplePicture, pictures, tile

LABELS = np.arange(5)


def red(shape, axis, dtype="uint8", low=0, high=255):
    """Images that are red: the first channel is the highest value, the others the lowest."""
    images = np.full(shape, low, dtype)
    np.moveaxis(images, axis, 0)[0] = high
    return images


@pytest.mark.parametrize(
    "images",
    [
        red((5, 8, 8, 3), -1),
        red((5, 3, 8, 8), 1),
        red((5, 3, 8, 8), 1, "float32", 0, 1),
        red((5, 3, 8, 8), 1, "float32", -1, 1),
        red((5, 3, 8, 8), 1, "float32", -2.12, 2.64),
        red((5, 3, 8, 8), 1, "float16", 0, 255),
        red((5, 3, 8, 8), 1, "int64", 0, 255),
        red((5, 3, 8, 8), 1, "uint16", 0, 65535),
        red((5, 3, 8, 8), 1, "bool", 0, 1),
        torch.from_numpy(red((5, 3, 8, 8), 1, "float32", 0, 1)).bfloat16(),
        list(red((5, 3, 8, 8), 1)),
        red((5, 7, 3, 8, 8), 2),
    ],
    ids=lambda images: f"{getattr(images, 'dtype', 'list')}-{list(getattr(images, 'shape', []))}",
)
def test_images_of_every_kind_keep_their_colour(images):
    shown = pictures({"x": images, "y": LABELS})
    assert (shown.kind, shown.path, len(shown.samples)) == ("image", '["x"]', 5)
    for sample in shown.samples:
        assert (sample.pixels == (255, 0, 0)).all()


def test_grey_images_need_no_channel():
    shown = pictures((np.full((5, 28, 28), 200, "uint8"), LABELS))
    assert (shown.samples[0].pixels == 200).all()
    assert shown.samples[0].pixels.shape == (28, 28, 3)


def test_images_of_different_sizes_keep_them():
    shown = pictures((([np.zeros((9 + i, 8, 3), "uint8") for i in range(5)]), LABELS))
    assert [sample.pixels.shape[0] for sample in shown.samples] == [9, 10, 11, 12, 13]


def test_transparent_pixels_are_white():
    images = np.zeros((5, 8, 8, 4), "uint8")
    images[1, ..., 3], images[2, ..., 3] = 51, 255
    shown = pictures((images, LABELS)).samples
    assert [set(sample.pixels.flat) for sample in shown[:3]] == [{255}, {204}, {0}]


def test_nan_stands_out():
    images = np.zeros((5, 3, 8, 8), "float32")
    images[0, :, 2, 3] = np.nan
    assert pictures((images, LABELS)).samples[0].pixels[2, 3].tolist() == [255, 0, 255]


def test_one_sample_is_one_picture():
    for image in (np.zeros((32, 48, 3), "uint8"), np.zeros((3, 32, 48), "uint8")):
        for sample in (image, (image, 7), {"png": image, "cls": 7, "__key__": "a"}):
            shown = pictures(sample)
            assert (shown.kind, len(shown.samples)) == ("image", 1)
            assert shown.samples[0].pixels.shape == (32, 48, 3)


def test_only_as_many_are_shown_as_asked_for():
    shown = pictures(np.zeros((50, 8, 8, 3), "uint8"), most=3)
    assert (len(shown.samples), shown.total) == (3, 50)


def test_a_batch_of_single_numbers_has_nothing_to_show():
    shown = pictures({"label": np.arange(3), "weight": np.ones(3)})
    assert (shown.kind, shown.samples, shown.total) == ("", (), 3)


IMAGES = np.zeros((3, 8, 8, 3), "uint8")
KEY_24, KEY_25 = "k" * 24, "k" * 25
NAMES = ["tench", "shark"]
LABELLED = {
    "the first two": ({"a": [1, 2, 3], "b": [4, 5, 6], "c": [7, 8, 9]}, ["1 · 4", "2 · 5", "3 · 6"]),
    "numbers in four digits": ({"a": [0.123456, 2.0, np.nan]}, ["0.1235", "2", "nan"]),
    "a key of 12 characters, beside a long one": (
        {"a": ["x" * 12] * 3, "b": [KEY_24] * 3},
        ["x" * 12] * 3,
    ),
    "no key of 13 characters beside a short one": ({"a": ["x" * 13] * 3, "b": [1, 2, 3]}, ["1", "2", "3"]),
    "a key of 24 characters": ({"a": [KEY_24] * 3}, [KEY_24] * 3),
    "a longer one, cut short": ({"a": [KEY_25] * 3}, [f"{'k' * 23}…"] * 3),
    "words between single spaces": ({"a": [" one\n  two "] * 3}, ["one two"] * 3),
    "names of classes": ({"y": np.array([0, 1, 2])}, ["tench", "shark", "2"]),
    "a class that is ignored": ({"y": np.array([-1, 1, -1])}, ["-1", "shark", "-1"]),
    "names of the first whole number": (
        {"weight": [0.0, 1.0, 0.0], "y": [0, 1, 0]},
        ["0 · tench", "1 · shark", "0 · tench"],
    ),
    "names of no other": ({"y": [0, 1, 0], "z": [1, 0, 1]}, ["tench · 1", "shark · 0", "tench · 1"]),
    "no lists of numbers": ({"a": np.zeros((3, 2))}, ["", "", ""]),
    "none that other samples have": ({"a": [1, 2]}, ["", "", ""]),
}


@pytest.mark.parametrize(("columns", "labels"), LABELLED.values(), ids=LABELLED)
def test_samples_are_labelled_with(columns, labels):
    shown = pictures({"x": IMAGES, **columns}, classes=NAMES if "y" in columns else ())
    assert (shown.path, [sample.label for sample in shown.samples]) == ('["x"]', labels)


def test_of_a_video_the_middle_frame_is_shown():
    videos = np.zeros((2, 5, 8, 8, 3), "uint8")
    videos[:, 2] = 200
    shown = pictures(videos)
    assert (shown.note, [(sample.pixels == 200).all() for sample in shown.samples]) == (
        "; the middle frames",
        [True, True],
    )


def test_the_picture_of_an_image_is_no_view_of_it():
    """A batch may lie in shared memory, which is written again."""
    images = IMAGES.copy()
    shown = pictures(images)
    images[:] = 9
    assert not any(sample.pixels.any() for sample in shown.samples)


SHAPES = {
    "pixels of 8 by 8 without channels": (np.zeros((3, 8, 8), "uint8"), "image"),
    "fewer than 8": (np.zeros((3, 7, 8), "uint8"), "text"),
    "pixels of 4 by 4 with channels": (np.zeros((3, 4, 4, 3), "uint8"), "image"),
    "channels first": (np.zeros((3, 1, 4, 4), "uint8"), "image"),
    "fewer than 4": (np.zeros((3, 3, 4, 3), "uint8"), "text"),
    "two channels, which are no colours": (np.zeros((3, 2, 8, 8), "uint8"), "text"),
    "tables of whole numbers": (np.zeros((3, 8, 8), "int64"), "text"),
    "complex pixels": (np.zeros((3, 8, 8), "complex64"), "text"),
    "64 values": (np.zeros((3, 64), "float32"), "waveform"),
    "63 values": (np.zeros((3, 63), "float32"), "text"),
    "2 tracks": (np.zeros((3, 2, 64), "float32"), "waveform"),
    "7 tracks": (np.zeros((3, 7, 64), "float32"), "waveform"),
    "samples of sound": (np.zeros((3, 64), "int16"), "waveform"),
    "whole numbers that are no sound": (np.zeros((3, 64), "int64"), "text"),
    "bytes that are no sound": (np.zeros((3, 64), "uint8"), "text"),
}


@pytest.mark.parametrize(("batch", "kind"), SHAPES.values(), ids=SHAPES)
def test_an_array_is_shown_as_what_its_shape_and_type_suggest(batch, kind):
    assert pictures({"x": batch, "y": np.arange(3)}).kind == kind


def test_of_a_sound_the_first_track_is_shown():
    sounds = np.zeros((2, 2, 100), "float32")
    sounds[:, 0] = 0.5
    assert all((sample.wave == 0.5).all() for sample in pictures(sounds).samples)


def test_twenty_numbers_of_a_sample_are_shown():
    numbers = np.arange(60).reshape(2, 30) / 8
    first = ", ".join(f"{number / 8:.4g}" for number in range(20))
    assert pictures(numbers).samples[0].text == first[:119] + "…" * (len(first) > 119)
    assert pictures(np.zeros((2, 30))).samples[0].text == ", ".join(["0"] * 20)


def test_texts_are_shown_with_single_spaces_and_cut_short():
    shown = pictures({"txt": ["one\n\n two ", b"\xd0\xb6", "words " * 100]})
    texts = ["one two", "ж", "words " * 19 + "words…"]
    assert (shown.kind, [sample.text for sample in shown.samples]) == ("text", texts)


def test_the_samples_are_as_many_as_most_leaves_are_long():
    shown = pictures({"sizes": np.arange(2), "x": IMAGES, "y": np.arange(3)})
    assert (shown.path, shown.total) == ('["x"]', 3)


def test_of_small_images_the_pixels_show_and_large_ones_are_smoothed():
    board = (np.indices((2, 2)).sum(0) % 2)[..., None].repeat(3, -1).astype("uint8") * 255
    large = np.asarray(tile(SamplePicture(pixels=board), 64))[..., 0]
    assert set(np.unique(large)) == {0, 255}
    fine = (np.indices((96, 96)).sum(0) % 2)[..., None].repeat(3, -1).astype("uint8") * 255
    small = np.asarray(tile(SamplePicture(pixels=fine), 32))[8:24, 8:24, 0]
    assert set(np.unique(small)) <= set(range(64, 192))


def test_an_image_is_in_the_middle_of_its_tile():
    drawn = np.asarray(tile(SamplePicture(pixels=np.full((8, 16, 3), 7, "uint8")), 32))
    rows = np.flatnonzero((drawn == (7, 7, 7, 255)).all((1, 2)))
    assert rows.tolist() == list(range(8, 24))
    assert not drawn[:8].any()
    assert not drawn[24:].any()


def test_a_wave_goes_up_for_what_is_above_zero_as_far_as_its_peak():
    wave = np.repeat(np.array([0.5, 0.0, -0.25, np.nan], "float32"), 16)
    drawn = np.asarray(tile(SamplePicture(wave=wave), 64))[..., 3] > 0
    tops = [int(np.flatnonzero(drawn[:, column])[0]) for column in (8, 24, 40, 56)]
    assert tops == pytest.approx([64 * 0.05, 32, 32 + 64 * 0.225, 32], abs=1)


def test_without_image_and_wave_a_tile_is_empty():
    drawn = np.asarray(tile(SamplePicture(text="a"), 16))
    assert drawn.shape == (16, 16, 4)
    assert not drawn.any()


SPANS = {
    "floats a little beyond 0 to 1": ("float32", -0.005, 1.005, ""),
    "floats further beyond": ("float32", -0.02, 1.02, "-0.02 is black, 1.02 is white"),
    "floats from -1 to 1": ("float32", -1.0, 1.0, "-1 is black, 1 is white"),
    "floats of bytes": ("float32", 0.0, 255.0, ""),
    "floats of bytes that are not so light": ("float32", 0.0, 200.0, ""),
    "floats beyond bytes": ("float32", 0.0, 256.0, "0 is black, 256 is white"),
    "16 bits": ("uint16", 0, 256, ""),
    "16 bits of bytes": ("uint16", 0, 255, ""),
    "other whole numbers": ("int16", -5, 5, "-5 is black, 5 is white"),
    "bytes": ("uint8", 3, 9, ""),
    "flags": ("bool", False, True, ""),
    "nothing finite": ("float32", np.nan, np.inf, ""),
}


@pytest.mark.parametrize(("dtype", "low", "high", "note"), SPANS.values(), ids=SPANS)
def test_a_note_tells_black_and_white_where_they_are_not_obvious(dtype, low, high, note):
    assert pictures((red((5, 3, 8, 8), 1, dtype, low, high), LABELS)).note == note
