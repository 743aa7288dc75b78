"""A worker is stopped or stuck: it is waited for, or named at the timeout, and ended all the same."""

import os
import signal
import threading
import time

import psutil
import pytest

from mpwds.errors import WorkerDied, WorkerTimeout
from mpwds.loader.launching import forkserver
from mpwds.loader.launching.forkserver import ServerGone
from tests.loader.faults.misfortunes import (
    CHEAP,
    LARGE,
    LENGTH,
    Numbers,
    endless,
    loader_of,
    numbers_in,
    pids_of,
)
from tests.loader.faults.processes import runs, state, wait_until, wait_until_gone

pytestmark = pytest.mark.usefixtures("one_fork_server")


def stop(pid):
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state(pid) == "T", f"{pid} to be stopped")


@pytest.mark.parametrize("size", [1, LARGE])
@pytest.mark.parametrize("kind", [*CHEAP, pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_worker_stopped_for_a_while_goes_on_and_nothing_is_lost(kind, size):
    loader = loader_of(kind, Numbers(size))
    iterator = iter(loader)
    received = [*numbers_in([next(iterator)])]
    pids = list(pids_of(loader, iterator))
    for pid in pids:
        stop(pid)
    continuing = threading.Timer(0.2, lambda: [os.kill(pid, signal.SIGCONT) for pid in pids])
    continuing.start()
    received.extend(numbers_in(iterator))
    continuing.join()
    assert received == list(range(LENGTH))
    loader.close()


@pytest.mark.parametrize("kind", CHEAP)
def test_a_worker_stopped_for_ever_is_a_timeout_and_ends_with_its_iteration(kind):
    loader = loader_of(kind, Numbers(LARGE), timeout=0.5)
    iterator = iter(loader)
    pids = list(pids_of(loader, iterator))
    for pid in pids:
        stop(pid)
    named = "|".join(
        rf"worker {number} \(pid {pid}\) delivered nothing for 0.5 s" for number, pid in enumerate(pids)
    )
    with pytest.raises(WorkerTimeout if kind == "fork" else RuntimeError, match=named) as caught:
        for _ in range(LENGTH):
            next(iterator)
    assert "see where it stands:\n(it gave no stack: it may be stopped)" in str(caught.value)
    assert not any(map(runs, pids))
    loader.close()


def test_a_stopped_worker_does_not_hold_up_the_end():
    loader = loader_of("fork", endless(LARGE))
    next(iter(loader))
    pids = loader.worker_pids
    for pid in pids:
        stop(pid)
    loader.close()
    assert not any(map(runs, pids))


def test_a_worker_that_is_busy_for_long_does_not_hold_up_the_end():
    def generate():
        yield 1
        time.sleep(600)

    with loader_of("fork", generate) as loader:
        next(iter(loader))
        pids = loader.worker_pids
    assert not any(map(runs, pids))


def test_a_fork_server_that_is_stopped_for_a_while_is_waited_for():
    loader = loader_of("DataLoader", Numbers())
    list(loader)
    pid = forkserver.ready([]).pid
    stop(pid)
    continuing = threading.Timer(0.2, os.kill, [pid, signal.SIGCONT])
    continuing.start()
    assert list(numbers_in(loader)) == list(range(LENGTH))
    continuing.join()


def run_and_stop_parent(kind):
    """A loader, its running iterator, its workers, and their parent, which is stopped."""
    loader = loader_of(kind, Numbers(LARGE))
    iterator = iter(loader)
    next(iterator)
    pids = list(pids_of(loader, iterator))
    parent = psutil.Process(pids[0]).ppid()
    stop(parent)
    return loader, iterator, [*pids, parent]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["DataLoader", "forkserver"])
def test_a_parent_of_workers_that_is_stopped_for_ever_does_not_hold_up_the_end(monkeypatch, kind):
    monkeypatch.setattr(forkserver, "STOPPED_S", 0.5)
    loader, iterator, pids = run_and_stop_parent(kind)
    del iterator
    loader.close()
    wait_until_gone(pids)
    assert list(numbers_in(loader)) == list(range(LENGTH))
    loader.close()


@pytest.mark.parametrize("kind", ["DataLoader", "forkserver"])
def test_a_parent_of_workers_that_is_stopped_does_not_hold_up_the_report_of_a_death(monkeypatch, kind):
    monkeypatch.setattr(forkserver, "STOPPED_S", 0.5)
    loader, iterator, pids = run_and_stop_parent(kind)
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises((WorkerDied, RuntimeError), match="forks the workers .* was stopped"):
        for _ in range(LENGTH):
            next(iterator)
    wait_until_gone(pids)
    assert list(numbers_in(loader)) == list(range(LENGTH))
    loader.close()


def test_a_fork_server_that_is_stopped_is_killed_when_workers_start_and_replaced(monkeypatch):
    monkeypatch.setattr(forkserver, "STOPPED_S", 0.5)
    server = forkserver.ready([])
    stop(server.pid)
    with pytest.raises(ServerGone, match=rf"\(pid {server.pid}\) was stopped .* gave no answer for 0.5 s"):
        server.prepare([])
    wait_until(lambda: server.is_gone, "the server to end")
    other = forkserver.ready([])
    stop(other.pid)
    assert forkserver.ready([]).pid not in (server.pid, other.pid)
