"""The programs of docs/mds.md, run one after the other as that page shows them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parent.parent / "docs" / "mds.md"


def test_the_programs_run_and_print_what_they_should(tmp_path):
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "page.py").write_text("".join(each for each in programs if "# not run" not in each))
    done = subprocess.run(
        [sys.executable, "-W", "error", "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "100 3 (28, 28)",
        *["25 (25, 28, 28)"] * 4,
        "100",
        "100 {'uid': '000007', 'data': 7}",
    ]
