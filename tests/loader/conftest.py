"""Datasets and programs for the loader's tests."""

import time

import numpy as np
import pytest

import mpwds
from mpwds.loader.launching import forkserver
from mpwds.loader.worker import elements
from mpwds.storage.writing.tar_writer import TarWriter
from tests.fake_cuda import kept_to_the_rules
from tests.loader.faults.programs import Program


@pytest.fixture(autouse=True)
def _nothing_left(nothing_left):
    """Every test of the loader leaves nothing behind."""


@pytest.fixture(scope="module")
def one_fork_server():
    """One for all tests of a module, so that they need not wait for a new one each."""
    forkserver.ready([])


@pytest.fixture(scope="module")
def quick_workers():
    """The fork server, from which a MultiLoader's workers come by default, has torch already."""
    forkserver.ready(["torch"])


@pytest.fixture(params=[0, 2], ids=["in this process", "2 workers"])
def workers(request):
    return request.param


@pytest.fixture
def clock_of_sleeps(monkeypatch):
    """What this process measures is the time for which it sleeps: a busy machine adds none."""
    now_ns = 0

    def sleep(seconds):
        nonlocal now_ns
        now_ns += round(seconds * 1e9)

    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    monkeypatch.setattr(time, "sleep", sleep)


@pytest.fixture
def cuda():
    with kept_to_the_rules("when asked") as fake:
        yield fake


@pytest.fixture
def shards(tmp_path):
    """Four tar shards of ten samples, each an 8-byte ``npy`` field and a ``cls``; returns the pattern."""
    for shard in range(4):
        with TarWriter(str(tmp_path / f"train-{shard}.tar")) as archive:
            for number in range(10 * shard, 10 * shard + 10):
                array = np.full((4, 3), number, np.float32)
                archive.write({"__key__": f"sample{number:03}", "npy": array, "cls": number})
    return f"{tmp_path}/train-{{0..3}}.tar"


@pytest.fixture
def program(tmp_path):
    """Starts a program from its text; see ``Program``."""
    started = []

    def start(text, *arguments, **circumstances):
        folder = circumstances.pop("folder", tmp_path / f"program{len(started)}")
        started.append(Program(text, folder, arguments, **circumstances))
        return started[-1]

    yield start
    for running in started:
        running.end()


@pytest.fixture
def at_rank(monkeypatch):
    """Makes this process a rank of so many."""

    def at_rank(rank, ranks):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(ranks))

    return at_rank


@pytest.fixture
def states_everywhere(monkeypatch):
    """Workers that are forks from now on send their state with every batch."""
    monkeypatch.setattr(elements, "STATE_EVERY_S", 0)
    monkeypatch.setattr(elements, "STATE_SHARE", float("inf"))


@pytest.fixture
def loader_of(at_rank):
    """Makes the loader of a rank, with twelve streams and stages ``after`` it."""
    loaders = []

    def loader_of(dataset, rank=0, ranks=1, workers=0, after=lambda loader: loader, **options):
        at_rank(rank, ranks)
        options = {"streams": 12, "seed": 3, "output": "numpy", "timeout": 60, **options}
        loaders.append(after(mpwds.MultiLoader(dataset, workers=workers, **options)))
        return loaders[-1]

    yield loader_of
    for loader in loaders:
        loader.close()
