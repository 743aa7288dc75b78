"""The program of docs/guides/servers/clusters.md, and the demo."""

import re
import subprocess
import sys
from pathlib import Path

from tests.cluster.conftest import without_ray

PAGE = Path(__file__).parents[2] / "docs/guides/servers/clusters.md"


def test_its_program_reads_from_a_fleet(nodes, tmp_path):
    nodes.add(cpus=2)
    (tmp_path / "pipeline.py").write_text(
        "import mpwds\ndataset = mpwds.DataPipeline(range(40)).batched(4)\n"
    )
    [program] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "train.py").write_text(program)
    words = [sys.executable, "train.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert without_ray(done.stdout) == "40 samples\n", done.stderr


def test_the_demo_loses_a_node_and_no_batch(command, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    done = subprocess.run(
        [*command, "demo", "--cluster", "--epochs", "2"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed a node in the middle of epoch 2" in done.stdout
    assert "all are the same, bit for bit, in the same order" in done.stdout
