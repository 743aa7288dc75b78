"""``make soak``, shortly: it runs, finds nothing that grows, and would find it."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[3] / "tools" / "soak.py"


@pytest.fixture(scope="module")
def soak():
    specification = importlib.util.spec_from_file_location("soak", SOAK)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_loaders_well_and_badly_treated_leave_nothing_behind():
    command = [sys.executable, str(SOAK), "--minutes", "0", "--interval", "0"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.stderr == ""
    head, *lines, verdict = run.stdout.splitlines()
    assert {len(line.split()) for line in lines} == {len(head.split())}
    # Whether memory is flat takes minutes to tell.
    assert verdict.startswith(("flat", "not flat: "))
    assert not {"descriptors", "threads", "processes"} & set(verdict.split())


@pytest.mark.parametrize(
    "name", ["rss_mb", "workers_pss_mb", "descriptors", "mappings", "threads", "processes"]
)
def test_a_figure_that_grows_is_named(soak, name):
    level = soak.Figures(200, 700, 70, 400, 1, 9)
    step = getattr(soak.ALLOWED, name)
    lines = [level._replace(**{name: getattr(level, name) + step * number}) for number in range(24)]
    (grown,) = soak.what_grew(lines)
    assert grown.startswith(f"{name} by ")


def test_figures_that_go_up_and_down_or_jumped_once_while_warming_up_are_flat(soak):
    level = soak.Figures(200, 700, 70, 400, 1, 9)
    lines = [level._replace(rss_mb=100 if number < 6 else 200 + 10 * (number % 3)) for number in range(24)]
    assert soak.what_grew(lines) == []
