import io
import os
import re
import signal
import subprocess
from contextlib import redirect_stderr, redirect_stdout

import psutil
import pytest
import torch
from PIL import Image

import mpwds
from mpwds.cli.demo import training
from mpwds.cli.demo.training import Outcome
from mpwds.cli.main import main


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The first ``mpwds demo`` ever, its output going to no terminal, and the cache folder."""
    cache = tmp_path_factory.mktemp("cache")
    with (
        pytest.MonkeyPatch.context() as environment,
        redirect_stdout(io.StringIO()) as output,
        redirect_stderr(io.StringIO()) as errors,
    ):
        environment.setenv("XDG_CACHE_HOME", str(cache))
        returncode = main(["demo"])
    result = subprocess.CompletedProcess(["demo"], returncode, output.getvalue(), errors.getvalue())
    return result, cache / "mpwds" / "digits"


def figures(result):
    """The epochs' losses and the accuracy, which time does not decide."""
    return re.findall(r"loss \S+|accuracy .*", result.stdout)


@pytest.mark.slow
def test_learns_the_digits_from_an_empty_cache(first):
    result, _ = first
    assert (result.returncode, result.stderr) == (0, "")
    assert float(re.search(r"accuracy +([\d.]+)% on the held-out samples", result.stdout)[1]) >= 97


@pytest.mark.slow
def test_shows_what_it_read_in_a_picture_whose_path_it_prints(first):
    result, directory = first
    path = directory.parent / "demo.png"
    assert f"picture    {path}\n" in result.stdout
    with Image.open(path) as picture:
        assert picture.size[0] > 800
        assert len(picture.getcolors(1 << 20)) > 20


@pytest.mark.slow
def test_leaves_the_shards_in_the_cache_folder(first):
    result, directory = first
    assert f"wrote 1,797 handwritten digits in {directory}" in result.stdout
    assert f"data       {directory} (16 shards)" in result.stdout
    assert len(list(directory.iterdir())) == 16


@pytest.mark.slow
def test_a_pipe_gets_one_plain_line_per_epoch(first):
    result, _ = first
    epochs = [line for line in result.stdout.splitlines() if line.startswith("epoch")]
    assert len(epochs) == 12
    for number, line in enumerate(epochs, start=1):
        assert re.fullmatch(rf"epoch {number}/12  loss [\d.]+  [\d,]+ samples/s  waited \d+% for data", line)
    assert "\r" not in result.stdout


@pytest.mark.slow
def test_later_runs_read_the_same_shards_and_come_to_the_same_figures(first, run):
    _, directory = first
    second, third = (run("demo", "--cache-dir", directory, "--epochs", 2) for _ in range(2))
    assert f"found 1,797 handwritten digits in {directory}" in second.stdout
    assert len(figures(second)) == 3
    assert figures(second) == figures(third)


def test_a_poor_accuracy_is_a_failure(digits, monkeypatch, capsys):
    images, labels = torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)
    outcome = Outcome(0.949, mpwds.MultiLoader([1], workers=0).stats(), images, labels)
    monkeypatch.setattr(training, "train", lambda *_, **__: outcome)
    assert main(["demo", "--cache-dir", str(digits)]) == 1
    errors = capsys.readouterr().err
    assert errors == "mpwds demo: 94.9% is below the 95% that the demo reaches with its default settings\n"


def test_a_terminal_gets_a_bar_for_each_epoch(digits, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["demo", "--cache-dir", str(digits), "--epochs", "2"]) == 0
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
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, errors) == (130, "")
    assert len(workers) == 3  # a fork server, and two of it
    assert psutil.wait_procs(workers, timeout=60)[1] == []
