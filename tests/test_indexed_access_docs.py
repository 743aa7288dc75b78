"""The programs of docs/indexed-access.md, run one after the other, print what the page says."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mpwds

PAGE = Path(__file__).parent.parent / "docs" / "indexed-access.md"
BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)


def write_shards(folder):
    rng = np.random.default_rng(0)
    with mpwds.ShardWriter(f"{folder}/train-%03d.tar", maxcount=100, verbose=0) as sink:
        for number in range(1000):
            image = rng.integers(0, 255, (28, 28, 3), np.uint8)
            sink.write({"__key__": f"{number:06}", "png": image, "cls": number % 10})


@pytest.mark.slow
def test_the_programs_print_what_the_page_says(tmp_path):
    write_shards(tmp_path)
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) >= 5
    program = "\nprint('--')\n".join(code for code, _ in blocks)
    (tmp_path / "page.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("--\n") == [expected for _, expected in blocks]
