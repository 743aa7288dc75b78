"""The package stays small enough to hold. Lower these limits when it shrinks."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

house = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "tools" / "house.py")))

# The figures of `python tools/house.py`, rounded up.
FILES_AND_LINES = {
    "the package": (house.package, 365, 53_600),
    "loader/": (lambda: house.package("loader"), 65, 9_600),
    "import mpwds.loader.multi_loader": (
        lambda: house.imported_with("mpwds.loader.multi_loader"),
        80,
        10_500,
    ),
}


@pytest.mark.parametrize("part", FILES_AND_LINES)
def test_a_part_has_not_grown(part):
    find, most_files, most_lines = FILES_AND_LINES[part]
    paths = find()
    assert len(paths) <= most_files
    assert house.lines_of(paths) <= most_lines


def test_modules_do_not_import_each_other_in_circles():
    assert house.import_circles() == []
