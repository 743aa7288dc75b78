"""What a dataset finds in its worker: its place, one thread, torch as under a DataLoader if at all."""

import os
import signal
import subprocess
import sys
import time
import weakref

import pytest
import torch
import torch.utils.data

import mpwds
from mpwds.loader.launching import forkserver

start_methods = pytest.mark.parametrize(
    "start_method", ["forkserver", "fork", pytest.param("spawn", marks=pytest.mark.slow)]
)


def from_workers(look, **options):
    """What ``look()`` returns in each of two workers."""

    def generate():
        yield look()

    with mpwds.MultiLoader(generate, workers=2, **options) as loader:
        return list(loader)


@start_methods
def test_variables_tell_rank_and_worker(at_rank, start_method):
    at_rank(3, 5)
    names = ("RANK", "WORLD_SIZE", "WORKER", "NUM_WORKERS")
    got = from_workers(lambda: [os.environ[name] for name in names], start_method=start_method)
    assert got == [["3", "5", "0", "2"], ["3", "5", "1", "2"]]


@start_methods
def test_torch_knows_the_worker_and_computes_with_one_thread(start_method):
    def look():

        info = torch.utils.data.get_worker_info()
        return info.id, info.num_workers, callable(info.dataset), torch.get_num_threads()

    assert from_workers(look, start_method=start_method) == [(0, 2, True, 1), (1, 2, True, 1)]


@start_methods
def test_objects_that_refer_to_themselves_are_freed(start_method):
    def look():
        class Node:
            pass

        references = []
        for _ in range(5000):
            node = Node()
            node.itself = node
            references.append(weakref.ref(node))
        return sum(reference() is None for reference in references)

    assert min(from_workers(look, start_method=start_method)) > 0


def test_torch_is_not_imported_unless_the_dataset_does():
    forkserver.let_go()  # another test's dataset may have imported it there
    assert from_workers(lambda: "torch" in sys.modules) == [False, False]


def test_numeric_libraries_are_told_to_use_one_thread_unless_the_user_said_otherwise(monkeypatch):
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    assert from_workers(lambda: [os.environ[name] for name in names]) == [["1", "1", "7"]] * 2


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_numpy_computes_with_one_thread(monkeypatch, start_method):
    def look():
        import numpy as np
        import threadpoolctl

        np.ones((2, 2)) @ np.ones((2, 2))
        return [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]

    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for pools in from_workers(look, start_method=start_method):
        assert set(pools) == {1}


@start_methods
def test_what_the_trainer_does_on_signals_workers_do_not(start_method):
    def look():
        return signal.getsignal(signal.SIGALRM) == signal.SIG_DFL, signal.set_wakeup_fd(-1)

    previous = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        assert from_workers(look, start_method=start_method) == [(True, -1)] * 2
    finally:
        signal.signal(signal.SIGALRM, previous)


JOBS = ["SIGINT", "SIGHUP", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2"]


@start_methods
def test_signals_to_the_whole_job_are_left_to_the_trainer(start_method):
    def look():
        for name in JOBS:
            os.kill(os.getpid(), getattr(signal, name))
        return sorted(map(str, signal.pthread_sigmask(signal.SIG_BLOCK, set())))

    assert from_workers(look, start_method=start_method) == [[], []]


@pytest.mark.parametrize("make", ["program", "fork"])
def test_what_a_worker_starts_is_ended_by_sigterm(make):
    def look():
        if make == "program":
            started = subprocess.Popen(["sleep", "600"])
            started.terminate()
            return started.wait()
        pid = os.fork()
        if not pid:
            time.sleep(600)
        os.kill(pid, signal.SIGTERM)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert from_workers(look, start_method="forkserver") == [-signal.SIGTERM] * 2


@start_methods
def test_descriptors_of_other_workers_and_the_trainer_are_not_there(start_method, tmp_path):
    path = tmp_path / "open"

    def look():
        targets = [
            os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _exists(name)
        ]
        return sum(target.startswith("socket:") for target in targets), str(path) in targets

    def _exists(name):
        return os.path.lexists(f"/proc/self/fd/{name}")

    with open(path, "w"):
        got = from_workers(look, start_method=start_method)
    inherits_files = start_method == "fork"
    sockets = {count for count, _ in got}
    assert got[0][1] is got[1][1] is inherits_files
    if not inherits_files:
        assert sockets <= {1, 2}


def test_the_users_working_directory_and_path_are_there():
    assert from_workers(lambda: (os.getcwd(), sys.path)) == [(os.getcwd(), sys.path)] * 2
