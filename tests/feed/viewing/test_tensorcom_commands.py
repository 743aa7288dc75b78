"""``mpwds monitor``, ``stat`` and ``show`` on what tensorcom sends."""

import json
import threading

import numpy as np
import pytest

from mpwds.cli.feed.sources import TensorcomStatus
from mpwds.tensorcom import Connection


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


def test_monitor_shows_rates_and_shapes(run_until, sender):
    result = run_until(lambda result: "uint8" in result.stdout, "monitor", sender, "--once")
    assert (result.returncode, result.stderr) == (0, "")
    assert "batches/s" in result.stdout
    assert "[0] uint8 [4, 3, 16, 16]" in result.stdout


def test_monitor_counts_samples_and_bytes(run_until, sender):
    def has_batches(result):
        return json.loads(result.stdout)["batches"] > 0

    figures = json.loads(run_until(has_batches, "monitor", sender, "--once", "--json").stdout)
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


def test_names_are_kept_bad_messages_counted_and_rates_are_since_the_last_reading(tmp_path):
    watched = TensorcomStatus([f"zpull+ipc://{tmp_path}/feed", f"zpull+ipc://{tmp_path}/other"])
    assert watched.name == f"zpull+ipc://{tmp_path}/feed, zpull+ipc://{tmp_path}/other"
    sent = {"image": np.zeros((2, 3), "uint8"), "label": np.ones(2, "int32")}
    try:
        with Connection(f"zpush+ipc://{tmp_path}/feed") as connection:
            connection.socket.send(b"no batch at all")
            connection.send(sent)
            batch = watched.peek(60)
            found = watched.read()
            with pytest.raises(TimeoutError, match=r"no batch arrived from .* within 0.1 s"):
                watched.peek(0.1)
            assert watched.read().batches == watched.read().samples_per_s == 0
            connection.send({**sent, "label": np.zeros(2, "int32")})
            assert watched.peek(60)["label"].tolist() == [0, 0]
        assert list(batch) == ["image", "label"]
        assert (found.batches, found.samples, found.nbytes, found.verdict) == (1, 2, 14, "")
        assert found.tensors == ('["image"] uint8 [2, 3]', '["label"] int32 [2]')
        assert found.batches_per_s == pytest.approx(1 / found.seconds)
        assert found.dropped == {"not a valid batch": 1}
    finally:
        watched.close()


def test_what_ends_the_receiver_is_raised_where_a_batch_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(Connection, "recv", lambda self: 1 / 0)
    watched = TensorcomStatus([f"zpull+ipc://{tmp_path}/feed"])
    try:
        for ask in (lambda: watched.peek(60), watched.read):
            with pytest.raises(ZeroDivisionError):
                ask()
    finally:
        watched.close()


def test_feeds_that_other_machines_can_reach_need_a_word_of_the_user(run):
    result = run("monitor", "zsub://192.0.2.1:7880", "--once")
    assert result.returncode == 2
    assert "say --insecure" in result.stderr
    assert "nothing has arrived" in run("monitor", "zsub://192.0.2.1:7880", "--once", "--insecure").stdout
