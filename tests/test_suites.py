"""`tools/suites.py` tells which tests of another package mpwds does not pass."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools/suites.py"

SAME = """
from torch.utils.data import DataLoader, Dataset

def test_batches():
    assert [batch.tolist() for batch in DataLoader([1, 2, 3], batch_size=2)] == [[1, 2], [3]]
"""

DIFFERENT = """
def test_home():
    assert DataLoader.__module__.startswith("torch."), DataLoader.__module__
"""


def compare(folder, text):
    file = folder / "test_tiny.py"
    file.write_text(text)
    return subprocess.run([sys.executable, TOOL, "torch", "--file", file], capture_output=True, text=True)


@pytest.mark.slow
def test_a_suite_with_the_same_results_is_a_success(tmp_path):
    done = compare(tmp_path, SAME)
    assert done.returncode == 0, done.stderr
    assert "mpwds: 1 tests, 1 passed" in done.stdout


def test_a_difference_is_told_with_its_error(tmp_path):
    done = compare(tmp_path, SAME + DIFFERENT)
    assert done.returncode == 1, done.stderr
    assert "torch: 2 tests, 2 passed" in done.stdout
    assert "test_tiny.test_home\n    AssertionError: mpwds.loader" in done.stdout


def test_a_missing_file_is_told_with_the_place_where_it_is(tmp_path):
    done = subprocess.run(
        [sys.executable, TOOL, "torch", "--file", tmp_path / "none.py"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "get it from https://github.com/pytorch" in done.stderr
