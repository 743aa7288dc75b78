"""``mpwds monitor``, ``stat``, ``show`` and ``keygen``, run as users run them, on a server with a trainer."""

import contextlib
import json
import os
import pty
import signal
import stat as modes
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from mpwds.cli.main import main
from mpwds.errors import ServerLost
from mpwds.feed.status_client import StatusClient
from tests.feed.viewing.statuses import answering, reading, status, worker


@pytest.fixture(autouse=True)
def patient_readings(monkeypatch):
    """Servers that have answered may take their time to do so again."""
    monkeypatch.setattr("mpwds.feed.status_client._ANSWER_S", 120)


def test_monitor_shows_rates_workers_stages_clients_and_what_bounds_them(run_until, live_feed):
    result = run_until(lambda result: result.stdout.count("running") == 2, "monitor", live_feed, "--once")
    assert (result.returncode, result.stderr) == (0, "")
    assert "batches/s" in result.stdout
    assert "map(picture)" in result.stdout
    assert "127.0.0.1" in result.stdout
    assert "range (10000000) → map(picture) → batched(16)" in result.stdout


def test_monitor_hands_the_same_to_programs(run_until, live_feed):
    def is_running(result):
        figures = json.loads(result.stdout)
        states = [worker["state"] for worker in figures["workers"]]
        return figures["batches_per_s"] > 0 and states == ["running", "running"]

    figures = json.loads(run_until(is_running, "monitor", live_feed, "--once", "--json").stdout)
    assert figures["servers"][0]["url"] == live_feed


@pytest.mark.parametrize("as_json", [["--json"], []], ids=["for programs", "for people"])
def test_monitor_goes_on_until_it_is_interrupted(live_feed, as_json):
    process = subprocess.Popen(
        [sys.executable, "-m", "mpwds", "monitor", live_feed, "--interval", "0.1", *as_json],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    readings = 0
    while readings < 3:
        readings += "batches/s" in process.stdout.readline().replace("batches_per_s", "batches/s", 1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert (process.returncode, errors) == (130, "")


def test_a_server_that_is_gone_may_come_back_while_one_looks(monkeypatch, capsys):
    before, after = (status(seconds, [worker(0, reading(seconds, batches=seconds))]) for seconds in (1, 2))
    readings = iter([[before], ServerLost("no answer from tcp://cpu1:7880"), [after], KeyboardInterrupt()])
    monkeypatch.setattr("mpwds.feed.status_client.StatusClient", answering(readings))
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["monitor", "tcp://cpu1:7880", "--insecure", "--interval", "0.1"]) == 130
    shown = capsys.readouterr().out
    assert "no answer from tcp://cpu1:7880" in shown
    assert shown.index("no answer") < shown.rindex("decode('rgb8')")


def test_a_terminal_gets_a_table_in_place_that_an_interrupt_takes_away(live_feed):
    shown, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "mpwds", "monitor", live_feed, "--interval", "0.1"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm-256color", "LINES": "40"},
    ) as process:
        os.close(terminal)
        text = b""
        while text.count(b"workers") < 3:
            text += os.read(shown, 1 << 16)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the terminal's other end is closed
            while more := os.read(shown, 1 << 16):
                text += more
    os.close(shown)
    assert process.returncode == 130
    assert b"Traceback" not in text
    assert text.count(b"\x1b[?1049h") == text.count(b"\x1b[?1049l") == 1


def test_monitor_adds_up_the_servers_that_braces_name(run, live_feed, idle_feed):
    ports = ",".join(url.rpartition(":")[2] for url in (live_feed, idle_feed))
    result = run("monitor", f"tcp://127.0.0.1:{{{ports}}}", "--once")
    assert "no trainer is connected" in result.stdout
    assert result.stdout.count(live_feed.removeprefix("tcp://")) > 1


def test_monitor_looks_up_addresses_as_a_trainer_does(run, idle_feed, tmp_path):
    (tmp_path / "servers.txt").write_text(f"# one\n{idle_feed}\n")
    assert "no trainer is connected" in run("monitor", f"file:{tmp_path}/servers.txt", "--once").stdout
    (tmp_path / "servers.txt").write_text("")
    done = run("monitor", f"file:{tmp_path}/servers.txt", "--once")
    assert (done.returncode, "servers.txt: no address of a server" in done.stderr) == (1, True)


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:9", "ipc:///nowhere/at/all"])
def test_a_server_that_does_not_answer_is_named(run, idle_feed, monkeypatch, url):
    monkeypatch.setitem(StatusClient.__init__.__kwdefaults__, "timeout", 0.3)
    result = run("monitor", url, "--once")
    assert result.returncode == 1
    assert f"mpwds monitor: error: no answer from {url}" in result.stderr


def test_a_server_that_does_not_answer_is_named_to_programs_beside_the_others(
    run, run_until, live_feed, monkeypatch
):
    assert json.loads(run("monitor", live_feed, "--once", "--json").stdout)["lost"] == {}
    monkeypatch.setitem(StatusClient.__init__.__kwdefaults__, "timeout", 3)
    monkeypatch.setattr("mpwds.feed.status_client._ANSWER_S", 3)

    def is_one_lost(result):
        return result.returncode == 0 and len(json.loads(result.stdout)["lost"]) == 1

    result = run_until(is_one_lost, "monitor", live_feed, "tcp://127.0.0.1:9", "--once", "--json")
    assert result.stderr.startswith("no answer from tcp://127.0.0.1:9 for ")
    figures = json.loads(result.stdout)
    assert list(figures["lost"]) == ["tcp://127.0.0.1:9"]
    assert [server["url"] for server in figures["servers"]] == [live_feed, "tcp://127.0.0.1:9"]


def test_stat_shows_each_tensor(run, live_feed):
    result = run("stat", live_feed, "-n", 2)
    assert (result.returncode, result.stderr) == (0, "")
    images, labels, keys = (line.split() for line in result.stdout.splitlines() if line.startswith("["))
    assert images[:8] == ["[0]", "uint8", "[16,", "3,", "32,", "32]", "0", "200"]
    assert labels[:3] == ["[1]", "int64", "[16]"]
    assert "key" in keys


def test_stat_and_monitor_tell_of_feeds_that_differ(run, live_feed, other_feed):
    result = run("stat", live_feed, other_feed, "-n", 1)
    assert (result.returncode, result.stderr.count("\n")) == (0, 1)
    assert result.stderr.startswith("warning: the servers have different datasets")
    shown = run("monitor", live_feed, other_feed, "--once").stdout
    assert "▸ the servers have different datasets" in shown
    assert "share of workers' time" not in shown


def test_stat_hands_the_same_to_programs(run, live_feed):
    images, labels, keys = json.loads(run("stat", live_feed, "-n", 3, "--json").stdout)
    assert (images["dtype"], images["shape"], images["high"]) == ("uint8", [16, 3, 32, 32], 200)
    assert images["mean"] == pytest.approx(200 / 3)
    assert images["std"] == pytest.approx(np.std([200, 0, 0]), rel=0.05)
    assert (labels["batches"], labels["elements"], labels["nans"]) == (3, 48, 0)
    assert keys["texts"][0].startswith("key ")


def test_show_saves_a_contact_sheet(run, live_feed, tmp_path):
    path = tmp_path / "batch.png"
    result = run("show", live_feed, "--save", path)
    assert (result.returncode, result.stdout) == (0, f"wrote {path}\n")
    with Image.open(path) as sheet:
        colours = {colour for _, colour in sheet.getcolors(1 << 20)}
    assert {(200, 0, 0), (0, 200, 0), (0, 0, 200)} <= colours


@pytest.mark.parametrize("listed", [False, True], ids=["a URL", "a list of URLs"])
def test_show_prints_labels_and_tensors_where_there_are_no_colours(run, live_feed, tmp_path, listed):
    (tmp_path / "servers.txt").write_text(live_feed)
    result = run("show", f"file:{tmp_path}/servers.txt" if listed else live_feed)
    assert "labels: " in result.stdout
    assert "[16, 3, 32, 32]" in result.stdout


def test_show_draws_pictures_in_a_terminal_with_colours(run, live_feed, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    assert "▀" in run("show", live_feed).stdout
    assert "48;2;200;0;0" in run("show", live_feed).stdout


def test_a_server_without_a_trainer_has_no_batch_to_show(run_until, idle_feed):
    result = run_until(
        lambda result: "does a trainer read from it?" in result.stderr, "show", idle_feed, "--timeout", "0.2"
    )
    assert result.returncode == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("monitor",),
        ("monitor", "http://cpu1:7880"),
        ("monitor", "cpu1:7880"),
        ("monitor", "tcp://cpu1:7880", "zsub://cpu1:7880"),
        ("stat", "tcp://127.0.0.1:1", "-n", "0"),
        ("show", "tcp://127.0.0.1:1", "--web", "--save", "x.png"),
        ("show", "tcp://127.0.0.1:1", "--port", "80"),
    ],
    ids=" ".join,
)
def test_arguments_that_make_no_sense_are_refused(run, arguments):
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1


def test_servers_of_other_machines_need_keys(run):
    result = run("monitor", "tcp://192.0.2.1:7880", "--once")
    assert result.returncode == 1
    assert "keys" in result.stderr


def test_keygen_makes_keys_that_only_the_owner_can_read_and_keeps_those_that_exist(run, tmp_path):
    result = run("keygen", tmp_path)
    assert result.returncode == 0
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(files) == 4
    assert {modes.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert all(path.name in result.stdout for path in files)
    assert "exist" in run("keygen", tmp_path).stdout
    run("keygen", tmp_path, "--client", "lab")
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path in files} == files
    assert {path.stem for path in tmp_path.iterdir()} == {"server", "client", "client-lab"}
