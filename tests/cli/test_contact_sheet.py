import numpy as np
import pytest
from PIL import Image

from mpwds.cli.demo.demo import write_contact_sheet


@pytest.mark.parametrize("size", [1, 8, 33, 64, 65, 300])
def test_images_of_any_size_fill_their_tiles(size, tmp_path):
    images = np.zeros((13, 3, size, size), np.uint8)
    images[:, 0] = 200
    write_contact_sheet(tmp_path / "new" / "sheet.png", images, range(13), "thirteen")
    with Image.open(tmp_path / "new" / "sheet.png") as sheet:
        red = (np.asarray(sheet) == (200, 0, 0)).all(2)
    assert red.sum() == 13 * 64 * 64
    assert list((tmp_path / "new").iterdir()) == [tmp_path / "new" / "sheet.png"]


def test_a_long_label_does_not_run_into_the_next(tmp_path):
    images = np.full((2, 3, 8, 8), 255, np.uint8)
    write_contact_sheet(tmp_path / "sheet.png", images, ["1" * 100, ""], "")
    with Image.open(tmp_path / "sheet.png") as sheet:
        dark = np.asarray(sheet.convert("L"))[:, 78:] < 128
    assert not dark.any()
