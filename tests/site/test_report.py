"""``make bench-report``: a page of what benchmarks print, each of which can be run again."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def report(folder, *words):
    command = [sys.executable, "tools/bench/report.py", "--folder", str(folder), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_a_page_has_what_benchmarks_print_until_they_run_again(tmp_path):
    assert report(tmp_path, "--only", "shard_lists").returncode == 0
    page = (tmp_path / "report.md").read_text()
    assert "\n## Long lists of shards\n" in page
    assert "`python tools/bench/shard_lists.py`" in page
    assert "| 1,000,000 |" in page
    failed = report(tmp_path, "--only", "shard_lists", "cache", "--", "--shards", "7", "--no-such-option")
    assert failed.returncode == 2
    assert "These failed" in failed.stderr
    assert (tmp_path / "report.md").read_text() == page
    assert set(json.loads((tmp_path / "report.json").read_text())) == {"shard_lists"}
