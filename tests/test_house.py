"""Rules for the package's structure.

Its sizes are figures and no rules: `python tools/house.py` prints them for docs/design.md.
"""

import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

house = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "tools" / "house.py")))


@pytest.mark.parametrize("of_folders", [False, True], ids=["files", "folders"])
def test_neither_files_nor_folders_import_each_other_in_circles(of_folders):
    assert house.import_circles(of_folders) == []


IMPORTS = """
import atexit, os, signal, sys, threading, warnings

def state():
    return {
        "finders": [*sys.meta_path, *sys.path_hooks, *sys.path],
        "hooks": [sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook],
        "warnings": [*warnings.filters, warnings.showwarning],
        "exit handlers": atexit._ncallbacks(),
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "threads": threading.enumerate(),
        "environment": dict(os.environ),
    }

before = state()
import mpwds
after = state()
sys.exit(", ".join(name for name in before if before[name] != after[name]) or 0)
"""


def test_importing_the_package_changes_nothing_for_the_program():
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)


def test_the_design_page_names_files_that_exist():
    root = Path(__file__).parents[1]
    page = (root / "docs" / "design.md").read_text()
    files = [f"/{path.relative_to(root)}" for path in root.glob("[mt]*/**/*.py")]
    named = re.findall(r"`([a-z_/0-9]+\.py)`", page)
    assert [name for name in named if not any(file.endswith(f"/{name}") for file in files)] == []
