import os
import re
import signal
import subprocess
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from mpwds.cli.demo import training
from mpwds.cli.demo.training import Outcome
from mpwds.cli.main import main


def figures(result):
    """The epochs' losses and the accuracy, which time does not decide."""
    return re.findall(r"loss \S+|accuracy .*", result.stdout)


@pytest.mark.slow
def test_learns_the_digits_from_an_empty_cache(run, tmp_path):
    cache = tmp_path / "cache/mpwds"
    result = run("demo")
    assert (result.returncode, result.stderr) == (0, "")
    assert float(re.search(r"accuracy +([\d.]+)% on the held-out samples", result.stdout)[1]) >= 97
    assert f"wrote 1,797 handwritten digits in {cache}/digits" in result.stdout
    assert f"data       {cache}/digits (16 shards)" in result.stdout
    assert len(list((cache / "digits").iterdir())) == 16
    epochs = [line for line in result.stdout.splitlines() if line.startswith("epoch")]
    assert len(epochs) == 12
    for number, line in enumerate(epochs, start=1):  # plain ones, for a pipe
        assert re.fullmatch(rf"epoch {number}/12  loss [\d.]+  [\d,]+ samples/s  waited \d+% for data", line)
    assert f"picture    {cache}/demo.png\n" in result.stdout
    with Image.open(cache / "demo.png") as picture:
        assert picture.size[0] > 800
        assert len(picture.getcolors(1 << 20)) > 20


@pytest.mark.slow
def test_later_runs_read_the_same_shards_and_come_to_the_same_figures(digits, run):
    first, second = (run("demo", "--cache-dir", digits, "--epochs", 2) for _ in range(2))
    assert f"found 1,797 handwritten digits in {digits}" in first.stdout
    assert len(figures(first)) == 3
    assert figures(first) == figures(second)


@pytest.fixture
def trained(monkeypatch, run):
    """Runs ``demo`` where training comes to this accuracy, after waiting for so much of the time; returns
    also what training was given."""

    def trained(accuracy, waiting_share, *words):
        given = {}

        def train(task, **options):
            given.update(options, samples=task.train_samples)
            return Outcome(accuracy, stats, torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 1]))

        stats = SimpleNamespace(samples_per_s=1234.5, waiting_share=waiting_share, first_batch_s=0.26)
        monkeypatch.setattr(training, "train", train)
        return run("demo", *words), given

    return trained


def test_a_poor_accuracy_is_a_failure(digits, trained):
    done, _ = trained(0.949, 0, "--cache-dir", digits)
    assert done.returncode == 1
    assert done.stderr == (
        "mpwds demo: 94.9% is below the 95% that the demo reaches with its default settings\n"
    )


def test_sums_up_what_it_read_and_how_fast(digits, trained, tmp_path):
    done, given = trained(0.951, 0.25, "--cache-dir", digits)
    assert (done.returncode, done.stderr) == (0, "")
    assert given == {"epochs": 12, "workers": 2, "lr": 3e-3, "samples": 1356}
    lines = [" ".join(line.split()) for line in done.stdout.splitlines() if line]
    assert lines[:-2] == [
        f"found 1,797 handwritten digits in {digits}",
        f"data {digits} (16 shards)",
        "samples 1,356 to train on, 441 held out, 10 classes",
        "accuracy 95.1% on the held-out samples",
        "speed 1,234 samples/s with 2 workers",
        "waiting 25% of the time, and 0.3 s before first batches",
        f"picture {tmp_path}/cache/mpwds/demo.png",
    ]
    assert 0 <= float(re.fullmatch(r"time (.*) s in all", lines[-2])[1]) < 1000
    assert lines[-1] == "Next, your own image shards: mpwds demo --data 'DIR/{000..009}.tar'"


@pytest.mark.parametrize(
    ("workers", "waiting_share", "advice"),
    [
        (0, 0.21, "let more workers decode: the same command with --workers 2"),
        (1, 0.21, "let more workers decode: the same command with --workers 2"),
        (2, 0.21, "let more workers decode: the same command with --workers 3"),
        (2, 0.2, "train longer: the same command with --epochs 10"),
        (9, 0.9, "train longer: the same command with --epochs 10"),
    ],
)
def test_says_what_to_do_next(trained, write_shard, tmp_path, workers, waiting_share, advice):
    for number in range(3):
        write_shard(f"own-{number}.tar", *({"png": b"", "cls": label % 2} for label in range(20)))
    options = ["--workers", workers, "--epochs", 5, "--lr", 0.5, "--test", tmp_path / "own-2.tar"]
    done, given = trained(0.1, waiting_share, "--data", f"{tmp_path}/own-{{0..1}}.tar", *options)
    assert done.returncode == 0
    assert given == {"epochs": 5, "workers": min(workers, 3), "lr": 0.5, "samples": 40}
    assert f"{tmp_path}/own-{{0..1}}.tar {tmp_path}/own-2.tar (3 shards)" in done.stdout
    assert done.stdout.splitlines()[-1] == f"Next, {advice}"


@pytest.mark.slow
def test_a_server_that_is_killed_costs_no_batch(command, tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    words = [*command, "demo", "--remote", "--epochs", "2"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done
    assert "started 2 servers of 2 workers" in done.stdout
    assert re.search(r"killed a server \(pid \d+\) in the middle of epoch 2\n", done.stdout)
    killed_at, arrived, expected = map(int, re.findall(r"(\d+) (?:batches|arrived|come from)", done.stdout))
    assert 0 < killed_at < arrived == expected
    assert "all are the same, bit for bit, in the same order" in done.stdout


def test_a_terminal_gets_a_bar_for_each_epoch(write_shard, monkeypatch, capsys):
    fields = ({"png": np.full((8, 8, 3), 100 * (n % 2), np.uint8), "cls": n % 2} for n in range(20))
    shard = write_shard("own.tar", *fields)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["demo", "--data", str(shard), "--size", "8", "--epochs", "2", "--workers", "0"]) == 0
    output = capsys.readouterr()
    assert "epoch 1/2  loss " in output.err
    assert "epoch 2/2  loss " in output.err
    assert re.findall(r"epoch (\d)/2  loss .* for data", output.out) == ["1", "2"]


@pytest.mark.slow
def test_ctrl_c_ends_the_demo_and_its_workers_quietly(command, digits):
    process = subprocess.Popen(
        [*command, "demo", "--cache-dir", str(digits), "--epochs", "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while not process.stdout.readline().startswith("epoch 2"):
            pass
        workers = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=600)
    finally:
        process.kill()
    assert (process.returncode, errors) == (130, "")
    assert len(workers) == 3  # a fork server, and two of it
    assert psutil.wait_procs(workers, timeout=600)[1] == []
