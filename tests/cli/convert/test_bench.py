"""``mpwds bench``: figures of a dataset and of its storage."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import mpwds
from mpwds.cli.convert.measuring import Run, storage_rate
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
def shards():
    """Two shards of 20 samples of a kilobyte; returns their pattern."""
    with mpwds.ShardWriter("x-%d.tar", maxcount=20, verbose=0) as sink:
        for number in range(40):
            sink.write({"__key__": f"{number:04d}", "cls": number, "bin": bytes(1000)})
    return Path("x-{0..1}.tar")


@pytest.fixture
def pipeline(shards):
    path = Path("slow_pipeline.py")
    path.write_text(PIPELINE.replace("{shards}", str(shards)))
    return path


@pytest.fixture
def bench(run, monkeypatch):
    """Runs ``mpwds bench`` with forks of this process for workers."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    return lambda *arguments: run("bench", *arguments, "--start-method", "fork")


@pytest.mark.slow
def test_a_pipelines_slowest_stage_is_named(bench, pipeline):
    shown = bench(f"{pipeline}:dataset", "-w", 1, "-s", 1).stdout
    assert "stage map(slow) takes" in " ".join(shown.split())
    assert "one process reads" in shown


def test_json_has_the_figures_of_each_run(bench, shards):
    told = json.loads(bench(shards, "-w", 1, 2, "-s", 0.5, "--json").stdout)
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
    told = json.loads(made.communicate(timeout=600)[0])
    assert (made.returncode, told["stopped"]) == (130, True)
    assert [run["workers"] for run in told["runs"]] == [1]


def test_an_empty_dataset_is_an_error(bench, pipeline):
    made = bench(f"{pipeline}:empty", "-w", 1)
    assert made.returncode == 1
    assert "empty" in made.stderr


def test_the_first_use_of_a_stage_is_not_counted_as_its_time(bench):
    Path("first_use.py").write_text(
        "import time\n"
        "import mpwds\n"
        "used = []\n"
        "def loading(number):\n"
        "    if not used:\n"
        "        time.sleep(3)\n"
        "        used.append(number)\n"
        "    return number\n"
        "dataset = mpwds.DataPipeline(range(64)).map(loading).batched(4)\n"
    )
    told = json.loads(bench("first_use.py:dataset", "-w", 1, "-s", 0.5, "--json").stdout)
    (run,) = told["runs"]
    (stage,) = (stage for stage in run["stats"]["stages"] if stage["name"] == "map(loading)")
    assert run["first_batch_s"] >= 3
    assert stage["seconds"] < run["seconds"] + 2  # of one worker


MISTAKES = {
    "stages without shards": ("slow_pipeline.py:stages", "slow_pipeline.py:stages is a list of stages"),
    "those of a package": ("package.stages:stages", "package.stages:stages is a list of stages"),
    "a function with an argument": ("slow_pipeline.py:slow", "without arguments: missing a .*'sample'"),
    "no dataset": ("slow_pipeline.py:__file__", "is no dataset: for shards of that name"),
    "a program": ("slow_pipeline.py", r"name a dataset in it, slow_pipeline.py:NAME"),
    "a feed": ("tcp://127.0.0.1:7880", "names feed servers: mpwds monitor shows what these do"),
    "a list of servers": ("file:servers.txt", r"bench measures datasets \(FILE.py:NAME\) and shards"),
}


@pytest.mark.parametrize(("source", "message"), MISTAKES.values(), ids=MISTAKES)
def test_what_cannot_be_measured_is_an_error_of_one_line(bench, pipeline, source, message):
    Path("package").mkdir()
    Path("package/stages.py").write_text(pipeline.read_text())
    sys.path.insert(0, os.getcwd())
    done = bench(source)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert re.search(message, done.stderr)


@pytest.fixture
def measured(monkeypatch, run, shards):
    """Runs ``bench`` where each number of workers delivers so many samples a second."""

    def measured(rates, *words, stopped_at=None):
        def of_count(dataset, workers, seconds, start_method):
            assert (seconds, start_method) == (0.5, "spawn")
            times = [SimpleNamespace(active_s=2.0, cpu_s=1.5)] * workers
            stage = SimpleNamespace(
                name="map(f)", share=0.25, seconds=2.0, elements=500, elements_per_s=250.0
            )
            idle = SimpleNamespace(name="idle", share=0.004, seconds=1.0, elements=0, elements_per_s=0)
            waiting = SimpleNamespace(name="rest", share=0.75, seconds=1.0, elements=0, elements_per_s=0)
            stats = SimpleNamespace(workers=times, stages=[stage, idle, waiting])
            stats.as_dict = dict
            rate = rates[workers]
            return Run(workers, 0.5, rate, rate * 1e6, rate / 4, 1.5, stats, workers != stopped_at)

        monkeypatch.setattr("mpwds.cli.convert.measuring.run", of_count)
        monkeypatch.setattr("mpwds.cli.convert.measuring.memory_rate", lambda: 2e9)
        monkeypatch.setattr("mpwds.cli.convert.measuring.storage_rate", lambda urls, seconds: 3e8 * len(urls))
        monkeypatch.setattr(
            Run,
            "verdict",
            lambda run, more_help=True: f"{run.workers} are bound by the disk" + ": add workers" * more_help,
        )
        return run("bench", shards, "-s", 0.5, "--start-method", "spawn", *words)

    return measured


def test_the_figures_are_shown_with_the_fewest_workers_that_are_about_as_fast_as_the_fastest(measured):
    done = measured({1: 100, 2: 1000, 4: 1050}, "-w", 4, 1, 2)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    assert " ".join(lines[0]) == "one process copies 2.0 GB/s of memory"
    assert " ".join(lines[1]) == "one process reads 600 MB/s of its shards"
    assert [line for line in lines if line[-1] == "s"] == [
        ["1", "100", "100.0", "25.0", "0.8", "1.50", "s"],
        ["2", "1,000", "1,000.0", "250.0", "1.5", "1.50", "s"],
        ["4", "1,050", "1,050.0", "262.5", "3.0", "1.50", "s"],
    ]
    assert [line for line in lines if line[0] in ("map(f)", "rest", "idle")] == [
        ["map(f)", "25%", "4", "250"],
        ["rest", "75%", "-", "-"],
    ]
    assert ["stages", "(2", "workers)"] in [line[:3] for line in lines]
    assert " ".join(lines[-1]) == (
        "2 workers feed 1,000 samples/s (1,000.0 MB/s), 10.0 times what 1 can; "
        "4 are not faster: 4 are bound by the disk"
    )


def test_a_run_that_is_stopped_shows_what_was_measured(measured):
    done = measured({1: 100, 2: 1000}, "-w", 1, 2, 4, stopped_at=2)
    assert done.returncode == 130
    assert done.stdout.splitlines()[-1] == "stopped before all was measured"
    assert "2 workers feed 1,000 samples/s (1,000.0 MB/s), 10.0 times what 1 can; 2 are bound" in done.stdout
    alone = measured({1: 100}, "-w", 1, stopped_at=1).stdout
    assert "1 worker feeds 100 samples/s (100.0 MB/s); 1 are bound by the disk: add workers" in alone


@pytest.mark.parametrize(("processors", "counts"), [(1, [1]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_powers_of_two_and_all_processors_are_the_usual_numbers(measured, monkeypatch, processors, counts):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(processors)))
    assert [
        run["workers"] for run in json.loads(measured(dict.fromkeys(counts, 1), "--json").stdout)["runs"]
    ] == counts


@pytest.mark.parametrize(("seconds", "files"), [(1, 1), (600, 2)])
def test_storage_is_read_for_so_many_seconds_at_most(monkeypatch, seconds, files):
    paths = [Path(name) for name in ("a", "b")]
    for path in paths:
        path.write_bytes(bytes(4000))
    times = itertools.chain([10.0], itertools.repeat(12.0))
    monkeypatch.setattr("mpwds.cli.convert.measuring.time", SimpleNamespace(monotonic=lambda: next(times)))
    assert storage_rate([str(path) for path in paths], seconds) == 2000 * files
