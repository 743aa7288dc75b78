import numpy as np
import pytest
import torch

from mpwds.viewing.pictures import pictures

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
    shown = pictures((np.zeros((5, 8, 8, 4), "uint8"), LABELS))
    assert (shown.samples[0].pixels == 255).all()


def test_nan_stands_out():
    images = np.zeros((5, 3, 8, 8), "float32")
    images[0, :, 2, 3] = np.nan
    assert pictures((images, LABELS)).samples[0].pixels[2, 3].tolist() == [255, 0, 255]


def test_a_note_says_how_unusual_values_became_colours():
    assert pictures((red((5, 3, 8, 8), 1, "float32", -2, 3),)).note == "-2 is black, 3 is white"
    assert pictures((red((5, 3, 8, 8), 1, "float32", 0, 1),)).note == ""


def test_one_sample_is_one_picture():
    for image in (np.zeros((32, 48, 3), "uint8"), np.zeros((3, 32, 48), "uint8")):
        for sample in (image, (image, 7), {"png": image, "cls": 7, "__key__": "a"}):
            shown = pictures(sample)
            assert (shown.kind, len(shown.samples)) == ("image", 1)
            assert shown.samples[0].pixels.shape == (32, 48, 3)


def test_labels_are_classes_before_long_keys():
    keys = [f"a/long/key/{index:06d}" for index in range(5)]
    images = np.zeros((5, 8, 8, 3), "uint8")
    assert pictures({"__key__": keys, "x": images, "y": LABELS}).samples[3].label == "3"
    assert pictures({"__key__": keys, "x": images}).samples[3].label == keys[3]


def test_only_as_many_are_shown_as_asked_for():
    shown = pictures(np.zeros((50, 8, 8, 3), "uint8"), most=3)
    assert (len(shown.samples), shown.total) == (3, 50)


def test_sounds_are_waveforms():
    shown = pictures((np.zeros((5, 2, 16000), "float32"), LABELS))
    assert (shown.kind, shown.samples[0].wave.shape) == ("waveform", (16000,))


def test_texts_are_cut_short():
    shown = pictures({"txt": ["word " * 100] * 5, "y": LABELS})
    assert (shown.kind, shown.samples[2].label) == ("text", "2")
    assert len(shown.samples[0].text) == 120


def test_tokens_are_shown_as_numbers():
    assert pictures(np.arange(10).reshape(2, 5)).samples[1].text == "5, 6, 7, 8, 9"


def test_a_batch_of_single_numbers_has_nothing_to_show():
    shown = pictures({"label": np.arange(3), "weight": np.ones(3)})
    assert (shown.kind, shown.samples, shown.total) == ("", (), 3)
