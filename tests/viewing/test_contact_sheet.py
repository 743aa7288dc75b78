import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image, ImageDraw

from mpwds.cli.outputs import write_png
from mpwds.viewing.contact_sheet import contact_sheet


@pytest.mark.parametrize("size", [4, 8, 33, 64, 65, 300])
def test_images_of_any_size_fill_their_tiles(size, tmp_path):
    images = np.zeros((13, 3, size, size), np.uint8)
    images[:, 0] = 200
    write_png(tmp_path / "new" / "sheet.png", contact_sheet((images, np.arange(13)), "thirteen"))
    with Image.open(tmp_path / "new" / "sheet.png") as sheet:
        red = (np.asarray(sheet) == (200, 0, 0)).all(2)
    side = 64 if size <= 64 else 99
    assert red.sum() == 13 * side * side
    assert list((tmp_path / "new").iterdir()) == [tmp_path / "new" / "sheet.png"]


def below_white_images(labels):
    """Which pixels of a contact sheet's pictures and labels are dark."""
    images = np.full((len(labels), 3, 8, 8), 255, np.uint8)
    return np.asarray(contact_sheet({"image": images, "label": labels}, "").convert("L"))[40:126] < 128


def test_a_long_label_does_not_run_into_the_next():
    assert not below_white_images(["W" * 100, ""])[:, 12 + 206 :].any()


@pytest.fixture
def words(monkeypatch):
    """What is written on contact sheets."""
    words = []
    monkeypatch.setattr(ImageDraw.ImageDraw, "text", lambda _, corner, text, *how: words.append(text))
    return words


def test_a_label_that_is_wider_than_its_image_is_not_cut(words):
    below_white_images(["german_shepherd_dog"])
    assert "german_shepherd_dog" in words


def test_a_text_that_is_longer_than_its_tile_ends_in_dots(words):
    contact_sheet({"txt": ["w" * 40 + " more" * 20]}, "")
    assert [line[-1] for line in words[1:4]] == ["…", "e", "…"]


def test_each_tensor_has_a_line_about_it(words):
    contact_sheet({"x": np.array([1.0, 3.0, np.nan])}, "one")
    figures = ["1", "min", "3", "max", "2", "mean", "1", "std", "1", "NaN, inf"]
    assert words == ["one", '["x"]', "float64  [3]", *figures]


def test_a_sheet_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    (tmp_path / "sheet.png").mkdir()
    with pytest.raises(OSError, match="sheet.png"):
        write_png(tmp_path / "sheet.png", contact_sheet([np.zeros((2, 8, 8))], ""))
    assert list(tmp_path.iterdir()) == [tmp_path / "sheet.png"]


dtypes = st.sampled_from(["bool", "uint8", "int64", "uint16", "float16", "float32", "float64", "complex64"])
arrays_of_any_kind = arrays.arrays(
    dtypes, arrays.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=9)
)
things = (
    arrays_of_any_kind | st.text(max_size=9) | st.binary(max_size=9) | st.floats() | st.integers() | st.none()
)
batches = st.recursive(
    things,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
)


@settings(max_examples=40)
@given(batches)
@example((np.zeros((4, 16000), "float32"), np.arange(4)))
@example({"txt": ["a b c"] * 7})
@example({"txt": ["word " * 1000], "cls": [1]})
@example([np.zeros((3, 5), "int64")])
@example({"none": None})
@example([])
@example(np.zeros((0, 3, 8, 8), "uint8"))
@example(np.full((2, 8, 8), np.nan))
@example(["一二三", "ж", "\x00\ud800"])
@example(np.zeros((3, 4, 4), "complex64"))
def test_whatever_a_sender_sends_can_be_drawn(batch):
    assert contact_sheet(batch, "title " * 100).width == 880


def test_two_bars_of_the_same_height_are_two():
    sheet = np.asarray(contact_sheet(np.arange(64) % 2, ""))
    bars = (sheet == (9, 105, 218)).all(-1).any(0).astype(int)
    assert (np.diff(bars) == 1).sum() == 2
