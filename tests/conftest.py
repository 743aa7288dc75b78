"""Fixtures that any room's tests may use."""

import collections
import contextlib
import gc
import glob
import os
import signal
import subprocess
import sys
import time

import hypothesis
import psutil
import pytest

from mpwds.loader.launching import forkserver
from tests.peers import PEERS

# Where a change is judged, the same examples each time; elsewhere, new ones. Timings decide nothing.
hypothesis.settings.register_profile("judged", derandomize=bool(os.environ.get("CI")), deadline=None)
hypothesis.settings.load_profile("judged")


# A shell that runs the tests in the background makes them ignore signals, and so would every program that
# they start; one that is sent such a signal to end it would run for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)

# A program that inherited this would write a line and its end one by one, so that lines of two workers mix.
os.environ.pop("PYTHONUNBUFFERED", None)


def pytest_collection_finish():
    """Exempts torch and thousands of tests from garbage collection, which would take 0.1 s each time."""
    gc.freeze()


def possessions():
    """What this process has that the system knows of: children, descriptors, shared memory with a name."""
    return collections.Counter(
        [
            *(("process", child) for child in _children_of("self")),
            *(("descriptor", _target(number)) for number in os.listdir("/proc/self/fd")),
            *(("shared memory", name) for name in os.listdir("/dev/shm") if _is_ours(name)),
        ]
    )


def _children_of(pid):
    """The processes that a process started, and theirs. (psutil takes 20 ms to look at all processes.)"""
    for tasks in glob.glob(f"/proc/{pid}/task/*/children"):
        with contextlib.suppress(OSError), open(tasks) as children:  # it may have ended
            for child in children.read().split():
                yield int(child)
                yield from _children_of(child)


def _is_ours(name):
    """Whether a name is one of this package's, and not of another process that runs, such as other tests."""
    prefix, _, rest = name.partition("-")
    pid = rest.partition("-")[0]
    return prefix == "mpwds" and (pid == str(os.getpid()) or not psutil.pid_exists(int(pid)))


def _target(descriptor):
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").partition(":")[0]
    except FileNotFoundError:  # the one that listed the others
        return ""


def fork_server():
    """The pid of this process' fork server, if it has one."""
    server = forkserver._current
    return None if server is None else server.pid


@pytest.fixture
def nothing_left():
    """Fails the test if it leaves a process, a descriptor or shared memory behind."""
    before, server = possessions(), fork_server()
    yield
    deadline = time.monotonic() + 300
    while (left := possessions() - before) and time.monotonic() < deadline:
        if fork_server() != server:
            forkserver.let_go()
        gc.collect()
        time.sleep(0.005)
    assert not left


@pytest.fixture
def import_peer(monkeypatch):
    """Imports a module of the packages that tests compare with; skips the test where there is none."""
    if PEERS not in sys.path:
        monkeypatch.setattr(sys, "path", [*sys.path, PEERS])
    return pytest.importorskip


@pytest.fixture(scope="session")
def limited():
    """Runs a program in which files grow to so many bytes and no further, as on a full disk."""

    def run(most_bytes, program, *arguments):
        limits = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({most_bytes}, {most_bytes}))"
        # Without -B, Python would leave modules in its cache that are cut off.
        words = [sys.executable, "-B", "-c", f"{limits}\n{program}", *map(str, arguments)]
        return subprocess.run(words, capture_output=True, text=True)

    return run
