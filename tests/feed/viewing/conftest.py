"""Feeds to look at, each in a process of its own."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import run as run
from tests.loader.faults.processes import wait_until

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")


@pytest.fixture
def run_until(run):
    """Runs a command until its result is as wanted: what it asks may stand still for its short time."""

    def run_until(is_wanted, *arguments):
        results = []
        wait_until(lambda: results.append(run(*arguments)) or is_wanted(results[-1]), f"{arguments}")
        return results[-1]

    return run_until


@contextlib.contextmanager
def running(*arguments):
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.feed.viewing.feed", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        url = process.stdout.readline().strip()
        assert url
        yield url
    finally:
        process.terminate()
        process.wait(600)
        process.stdout.close()


@pytest.fixture(scope="module")
def live_feed():
    """The URL of a server from which a trainer reads."""
    with running("trainer") as url:
        yield url


@pytest.fixture(scope="module")
def other_feed():
    """The URL of a server of another dataset, with a trainer."""
    with running("trainer", "small") as url:
        yield url


@pytest.fixture(scope="module")
def idle_feed():
    """The URL of a server without a trainer."""
    with running() as url:
        yield url
