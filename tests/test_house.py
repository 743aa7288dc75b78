"""Rules for the package's structure.

Its sizes are figures and no rules: `python tools/house.py` prints them for docs/design.md.
"""

import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

house = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "tools" / "house.py")))


def test_modules_do_not_import_each_other_in_circles():
    assert house.import_circles() == []


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
