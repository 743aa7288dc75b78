"""Feeds to look at, whose servers are processes of their own."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import mpwds
from tests.cli.conftest import run as run
from tests.feed.serving import ServerProcess
from tests.loader.faults.processes import wait_until


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


def picture(number):
    image = np.zeros((3, 32, 32), np.uint8)
    image[number % 3] = 200
    return image, number % 10, f"key {number}"


@contextlib.contextmanager
def running(size=16):
    """The URL of a server in a process of its own."""
    dataset = mpwds.DataPipeline(range(10_000_000)).map(picture).batched(size)
    with ServerProcess(dataset, workers=2) as server:
        yield server.url


@contextlib.contextmanager
def reading(url):
    """A trainer that reads from a server meanwhile."""
    began, ended = threading.Event(), threading.Event()

    def read():
        with mpwds.RemoteLoader(url, output="numpy") as loader:  # without torch
            for number, _ in enumerate(loader):
                if number == 10:
                    began.set()
                if ended.wait(0.02):
                    break

    with ThreadPoolExecutor(1) as pool:
        pool.submit(read)
        try:
            assert began.wait(600)
            yield
        finally:
            ended.set()


@pytest.fixture(scope="module")
def live_feed():
    """The URL of a server from which a trainer reads."""
    with running() as url, reading(url):
        yield url


@pytest.fixture(scope="module")
def other_feed():
    """The URL of a server of another dataset, with a trainer."""
    with running(size=8) as url, reading(url):
        yield url


@pytest.fixture(scope="module")
def idle_feed():
    """The URL of a server without a trainer."""
    with running() as url:
        yield url
