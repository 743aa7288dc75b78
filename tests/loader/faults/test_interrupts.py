"""Ctrl-C at any moment: it is heard, nothing is left, and the loader works again."""

import contextlib
import gc
import os
import random
import signal
import sys
import threading

import pytest

import mpwds
from mpwds import interrupts
from mpwds.loader.engine.local_worker import LocalWorker
from tests.loader.faults.misfortunes import CHEAP, LARGE, Numbers, endless, loader_of, pids_of
from tests.loader.faults.processes import wait_until_gone


@contextlib.contextmanager
def interrupts_inside(function):
    """Sends this process Ctrl-C again and again, at odd times. It is raised only where ``function`` runs.

    Raised anywhere else, it would end the tests themselves.
    """

    def handler(number, frame):
        while frame:
            if frame.f_code is function.__code__:
                raise KeyboardInterrupt
            frame = frame.f_back

    def send():
        times = random.Random(7)
        while not over.wait(times.uniform(0, 0.05)):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    over = threading.Event()
    before = signal.signal(signal.SIGINT, handler)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join()
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_at_any_moment_leaves_nothing_and_the_loader_works_again(monkeypatch):
    # Ctrl-C may come at the very beginning of a finalizer, before any code of ours.
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    loaders = []
    caught = 0

    def read_a_new_loader():
        loader = mpwds.MultiLoader(endless(20_000), workers=2, start_method="fork")
        loaders.append(loader)
        for _ in loader:
            pass

    with interrupts_inside(read_a_new_loader):
        while caught < 10 or not loaders:
            try:
                read_a_new_loader()
            except KeyboardInterrupt:
                caught += 1
    interrupts.pending.clear()
    last = loaders[-1]
    assert sum(1 for _ in zip(range(50), last, strict=False)) == 50
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize(
    "make",
    [
        "MultiLoader(items, workers=2, start_method='spawn', output='numpy')",
        "MultiLoader(items, workers=2, start_method='forkserver', output='numpy').map(len)",
        "DataLoader(items, num_workers=2)",
    ],
)
def test_ctrl_c_is_heard_while_a_dataset_takes_long_to_arrive(program, make):
    running = program(
        """
        import sys
        import mpwds

        class Slow:
            def __reduce__(self):
                return exec, ("import time; print('unpickling', flush=True); time.sleep(600)",)

        items = mpwds.DataPipeline([Slow()])
        loader = eval("mpwds." + sys.argv[1])
        list(loader)
        """,
        make,
    )
    assert running.line() == "unpickling"
    running.interrupt()
    status, _, errors = running.finish()
    assert (status, errors.count("Traceback")) == (-signal.SIGINT, 1)
    assert "    list(loader)\n" in errors
    frames = errors.count(f'  File "{os.path.dirname(mpwds.__file__)}')
    assert frames < 8, errors  # three while it sleeps, a few more wherever else it is just then


def interrupted(call):
    """``call``, with Ctrl-C in the middle of it."""

    def called(*arguments):
        signal.raise_signal(signal.SIGINT)
        return call(*arguments)

    return called


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("persistent", [True, False])
def test_ctrl_c_while_an_iterator_is_dropped_is_heard_at_the_next_batch(monkeypatch, persistent):
    with mpwds.MultiLoader(endless(LARGE), workers=2, start_method="fork", persistent=persistent) as loader:
        iterator = iter(loader)
        next(iterator)
        with monkeypatch.context() as patched:
            patched.setattr(LocalWorker, "stop", interrupted(LocalWorker.stop))
            del iterator
        assert bool(loader.worker_pids) is persistent
        with pytest.raises(KeyboardInterrupt):
            next(iter(loader))
        next(iter(loader))


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", CHEAP)
def test_ctrl_c_while_a_loader_is_collected_is_heard_later_and_its_workers_end(monkeypatch, kind):
    loader = loader_of(kind, Numbers(LARGE))
    iterator = iter(loader)
    next(iterator)
    pids = list(pids_of(loader, iterator))
    with monkeypatch.context() as patched:
        patched.setattr(LocalWorker, "disconnect", interrupted(LocalWorker.disconnect))
        del iterator, loader
        gc.collect()
    wait_until_gone(pids)
    with pytest.raises(KeyboardInterrupt):
        interrupts.raise_deferred()
