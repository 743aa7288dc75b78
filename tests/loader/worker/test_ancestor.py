"""The known failures of webdataset's MultiLoader, from which this loader descends: none is inherited."""

import glob
import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest

import mpwds


def epoch_within(seconds, loader):
    """Batches of one epoch; fails, instead of hanging, if it takes longer."""
    received = []
    thread = threading.Thread(target=lambda: received.extend(loader), daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "hangs"
    return received


@pytest.mark.slow
def test_the_last_message_of_a_worker_is_not_lost_at_its_exit():
    for _ in range(10):
        loader = mpwds.MultiLoader(["x" * 10_000] * 4, workers=4, persistent=False, start_method="fork")
        assert len(epoch_within(10, loader)) == 4


def test_a_worker_that_raises_does_not_hang_the_loader():
    def generate():
        yield 1
        raise ValueError("bad")

    received = []
    with pytest.raises(ValueError, match="bad"):
        received.extend(mpwds.MultiLoader(generate, workers=2))


def test_a_worker_that_is_killed_does_not_hang_the_loader():
    def generate():
        yield 1
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(mpwds.WorkerDied):
        list(mpwds.MultiLoader(generate, workers=2))


def test_no_socket_files_are_made(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = set(glob.glob("/tmp/_multi-*"))
    loader = mpwds.MultiLoader(lambda: iter(range(10**9)), workers=2)
    next(iter(loader))
    assert list(tmp_path.iterdir()) == []
    loader.close()
    assert set(glob.glob("/tmp/_multi-*")) == before


def test_samples_are_not_pickled(monkeypatch):
    batch = {"image": np.zeros(100_000), "label": np.zeros(3), "key": ["a"], "pair": (1, None)}
    with mpwds.MultiLoader([batch], workers=1) as loader:
        iterator = iter(loader)
        monkeypatch.setattr(pickle, "loads", None)
        assert next(iterator)["image"].shape == (100_000,)


def test_ending_is_silent_and_prints_nothing(capfd):
    with mpwds.MultiLoader(lambda: iter(range(10**9)), workers=2) as loader:
        next(iter(loader))
        time.sleep(0.05)
    assert capfd.readouterr() == ("", "")
