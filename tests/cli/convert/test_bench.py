"""``mpwds bench``: figures of a dataset and of its storage."""

import json
import os
import signal
import subprocess

import pytest

import mpwds
from tests.cli.running import wait_until

PIPELINE = """
import pathlib, time
import mpwds

def slow(sample):
    time.sleep(0.002)
    if sample["__key__"] == "0030":
        pathlib.Path("{shards}").with_name("has begun").touch()
    return sample["cls"]

dataset = mpwds.WebDataset("{shards}").map(slow).batched(4)
empty = mpwds.WebDataset("{shards}").select(lambda sample: False).batched(4)
stages = [mpwds.decode("rgb8")]
"""


@pytest.fixture
def shards(tmp_path):
    """Two shards of 20 samples of a kilobyte; returns their pattern."""
    with mpwds.ShardWriter(str(tmp_path / "x-%d.tar"), maxcount=20, verbose=0) as sink:
        for number in range(40):
            sink.write({"__key__": f"{number:04d}", "cls": number, "bin": bytes(1000)})
    return tmp_path / "x-{0..1}.tar"


@pytest.fixture
def pipeline(tmp_path, shards):
    path = tmp_path / "slow_pipeline.py"
    path.write_text(PIPELINE.replace("{shards}", str(shards)))
    return path


@pytest.fixture
def bench(command):
    """Runs ``mpwds bench``, in a process of its own since it starts workers; returns what it prints."""

    def bench(*arguments):
        words = [*command, "bench", *map(str, arguments)]
        return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout

    return bench


@pytest.mark.slow
def test_a_pipelines_slowest_stage_is_named(bench, pipeline):
    shown = bench(f"{pipeline}:dataset", "-w", 1, "-s", 1)
    assert "stage map(slow) takes" in " ".join(shown.split())
    assert "one process reads" in shown


def test_json_has_the_figures_of_each_run(bench, shards):
    told = json.loads(bench(shards, "-w", 1, 2, "-s", 0.5, "--json"))
    assert [run["workers"] for run in told["runs"]] == [1, 2]
    assert all(run["samples_per_s"] > 0 and run["bytes_per_s"] > 0 for run in told["runs"])
    assert told["storage_bytes_per_s"] > 0
    assert told["stopped"] is False


@pytest.mark.slow
def test_ctrl_c_shows_what_was_measured_until_then(command, pipeline):
    made = subprocess.Popen(
        [*command, "bench", f"{pipeline}:dataset", "-w", "1", "2", "-s", "600", "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_until((pipeline.parent / "has begun").exists, made)
    made.send_signal(signal.SIGINT)
    told = json.loads(made.communicate(timeout=60)[0])
    assert (made.returncode, told["stopped"]) == (130, True)
    assert [run["workers"] for run in told["runs"]] == [1]


def test_an_empty_dataset_is_an_error(command, pipeline):
    made = subprocess.run([*command, "bench", f"{pipeline}:empty", "-w", "1"], capture_output=True, text=True)
    assert made.returncode == 1
    assert "empty" in made.stderr


@pytest.mark.parametrize("by_path", [True, False], ids=["path", "module of a package"])
def test_stages_without_shards_are_no_dataset(command, pipeline, by_path):
    (pipeline.parent / "package").mkdir()
    module = pipeline.rename(pipeline.parent / "package" / pipeline.name)
    words = [*command, "bench", f"{module if by_path else f'package.{module.stem}'}:stages"]
    environment = {**os.environ, "PYTHONPATH": str(pipeline.parent)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert "is a list of stages" in done.stderr
