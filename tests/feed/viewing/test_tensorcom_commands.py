"""``mpwds monitor``, ``stat`` and ``show`` on what tensorcom sends."""

import json
import threading

import numpy as np
import pytest

from mpwds.cli.feed.sources import TensorcomStatus
from mpwds.tensorcom import Connection


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")


@pytest.fixture
def sender(tmp_path):
    """Publishes batches all the time; the URL from which ``zsub`` receives them."""
    address, ended = f"ipc://{tmp_path}/feed", threading.Event()
    batch = [np.full((4, 3, 16, 16), 7, "uint8"), np.arange(4, dtype="int32")]

    def send():
        with Connection(f"zpub+{address}") as connection:
            while not ended.wait(0.001):
                connection.send(batch)

    thread = threading.Thread(target=send)
    thread.start()
    yield f"zsub+{address}"
    ended.set()
    thread.join()


def test_monitor_shows_rates_and_shapes(run, sender):
    result = run("monitor", sender, "--once")
    assert (result.returncode, result.stderr) == (0, "")
    assert "batches/s" in result.stdout
    assert "[0] uint8 [4, 3, 16, 16]" in result.stdout


def test_monitor_counts_samples_and_bytes(run, sender):
    figures = json.loads(run("monitor", sender, "--once", "--json").stdout)
    assert figures["batches"] > 0
    assert figures["samples"] == 4 * figures["batches"]
    assert figures["nbytes"] == (4 * 3 * 16 * 16 + 16) * figures["batches"]


def test_stat_shows_each_array(run, sender):
    images, labels = json.loads(run("stat", sender, "-n", 2, "--json").stdout)
    assert (images["low"], images["high"], images["batches"]) == (7, 7, 2)
    assert labels["mean"] == 1.5


def test_show_saves_a_contact_sheet(run, sender, tmp_path):
    assert run("show", sender, "--save", tmp_path / "batch.png").returncode == 0
    assert (tmp_path / "batch.png").stat().st_size > 1000


def test_a_sender_that_does_not_run_is_said(run, tmp_path):
    result = run("stat", f"zsub+ipc://{tmp_path}/nobody", "--timeout", "0.2")
    assert result.returncode == 1
    assert "does the sender run?" in result.stderr
    assert "nothing has arrived yet" in run("monitor", f"zsub+ipc://{tmp_path}/nobody", "--once").stdout


def test_a_url_of_no_kind_is_refused_with_what_is_close(run):
    result = run("monitor", "zsup://host:7880")
    assert result.returncode == 1
    assert "zsub" in result.stderr


def test_names_are_kept_and_bad_messages_counted(tmp_path):
    watched = TensorcomStatus([f"zpull+ipc://{tmp_path}/feed"])
    try:
        with Connection(f"zpush+ipc://{tmp_path}/feed") as connection:
            connection.socket.send(b"no batch at all")
            connection.send({"image": np.zeros(3, "uint8"), "label": np.ones(1, "int32")})
            batch = watched.peek(60)
        assert list(batch) == ["image", "label"]
        assert watched.read().dropped == {"not a valid batch": 1}
    finally:
        watched.close()
