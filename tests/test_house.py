"""Rules for the package's structure.

Its sizes are figures and no rules: `python tools/house.py` prints them for docs/design.md.
"""

import runpy
from pathlib import Path
from types import SimpleNamespace

house = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "tools" / "house.py")))


def test_modules_do_not_import_each_other_in_circles():
    assert house.import_circles() == []
