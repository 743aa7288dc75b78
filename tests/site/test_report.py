"""``make bench-report``: a page of what benchmarks print, each of which can be run again."""

import datetime
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROOF = ROOT / "docs/proof"
FIGURE = re.compile(
    r"(\d[\d,.]*)[ -]?(?:[kMG]B/s|(?:batches|images|rows|samples)/s|[mun]s\b|times (?:as|faster))"
)
OTHER_FIGURES = {
    "docs/design.md": "figures that defend a choice",
    "docs/guides/servers/watching-feeds.md": "an example of a verdict",
    "docs/guides/training/what-bounds-my-training.md": "what its programs print",
    "docs/proof/faults.md": "a run of which it tells the date",
    "docs/proof/report.md": "the report",
}
"""Pages whose figures need not be in the report: what they have instead."""
PAGES = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md")}


@pytest.fixture
def plot(monkeypatch):
    """The program that draws the report's pictures."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("plot")


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


def test_figures_of_a_benchmark_become_pictures(tmp_path):
    done = report(tmp_path, "--only", "growth", "--", "--quick", "--only", "shards")
    assert done.returncode == 0, done.stderr
    [chart] = json.loads((tmp_path / "report.json").read_text())["growth"]["figures"]["charts"]
    assert [count for count, _ in chart["curves"]["a pattern"]] == [10**digits for digits in range(1, 7)]
    for theme in "light", "dark":
        assert "Milliseconds to the first shard" in (tmp_path / f"growth-{theme}.svg").read_text()


def test_the_pictures_show_figures_of_the_report(plot):
    drawn = plot.pictures(json.loads((PROOF / "report.json").read_text()))
    assert {name: (PROOF / name).read_text() for name in drawn} == drawn


def test_a_contestant_without_a_figure_is_left_out(plot):
    panel, other = plot.PANELS
    loader = {"machine": "2 cores", "samples_per_s": {panel.contest: {"mpwds.MultiLoader": 1000.0}}}
    drawn = plot.throughput(loader, {"machine": "2 cores", "samples_per_s": {}}, "light")
    assert panel.title in drawn
    assert "mpwds MultiLoader" in drawn
    assert "grain" not in drawn
    assert other.title not in drawn


def test_the_report_is_of_one_machine_one_set_of_versions_and_one_day():
    parts = json.loads((PROOF / "report.json").read_text()).values()
    assert len({part["machine"] for part in parts}) == 1
    versions = {}
    for part in parts:
        for package, version in part["versions"].items():
            versions.setdefault(package, set()).add(version)
    assert {package: found for package, found in versions.items() if len(found) > 1} == {}
    dates = [datetime.date.fromisoformat(part["date"]) for part in parts]
    assert max(dates) - min(dates) <= datetime.timedelta(days=1)


@pytest.mark.parametrize("page", sorted({"README.md", *PAGES} - {*OTHER_FIGURES}))
def test_a_page_quotes_only_figures_of_the_report(page):
    report = json.loads((PROOF / "report.json").read_text())
    measured = "\n".join(run["output"] for run in report.values())
    quoted = FIGURE.findall((ROOT / page).read_text())
    assert [figure for figure in quoted if not re.search(rf"(?<![\d.,]){figure}(?![\d.,])", measured)] == []


def test_what_counts_as_a_quoted_figure():
    text = "64 samples come 2.5 times as fast, 1,200 images/s or 10 GB/s, after 3 ms"
    assert FIGURE.findall(text) == ["2.5", "1,200", "10", "3"]
