"""``--on ray``: the shards of a job are tasks of a cluster, whose nodes and programs are killed."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.running import wait_until
from tests.cluster.conftest import without_ray

PIPELINE = """
import os, random, time
import mpwds
from helper import suffix

class Odd(Exception):
    def __init__(self, key, why):
        super().__init__(f"{key} is {why}")

def augmented(sample):
    key = sample["__key__"]
    with open("log", "a") as log:
        log.write(key + chr(10))
    while os.path.exists(f"hold-{key[:1]}"):
        time.sleep(0.01)
    return {**sample, "txt": f"{random.random()}{suffix}"}

def fails(sample):
    raise Odd(sample["__key__"], "odd")

stages = [mpwds.map(augmented)]
failing = [mpwds.map(fails)]
"""
SHARDS = 6


@pytest.fixture
def job(tmp_path, monkeypatch, write_shard, command):
    """The words of a job with six shards."""
    monkeypatch.chdir(tmp_path)
    Path("code").mkdir()
    Path("code/pipeline.py").write_text(PIPELINE)
    Path("code/helper.py").write_text("suffix = '!'\n")
    for shard in range(SHARDS):
        write_shard(f"in-{shard}.tar", *({"__key__": f"{shard}{n}", "cls": n} for n in range(3)))
    words = ["proc", "code/pipeline.py:stages", "in-{0..5}.tar"]
    return lambda output="out-%d.tar", *options: [*command, *words, output, *options]


@pytest.fixture
def expected(job):
    """The shards that a run on this machine writes."""
    subprocess.run(job("here-%d.tar", "-j", "1"), check=True, capture_output=True)
    Path("log").unlink()
    return read("here-*.tar")


def read(pattern="out-*.tar"):
    return {path.name.partition("-")[2]: path.read_bytes() for path in Path().glob(pattern)}


def finished(words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tasks_write_what_one_machine_writes(nodes, job, expected):
    nodes.add(cpus=1)
    nodes.add(cpus=1)
    out = finished(job("out-%d.tar", "--on", "ray"))
    assert out.startswith("18 samples")
    assert out.endswith(": 6 shards written\n")
    assert read() == expected


def test_the_tasks_of_a_killed_node_run_elsewhere(nodes, job, expected):
    first = nodes.add(cpus=2)
    Path("hold-1").touch()
    running = subprocess.Popen(
        job("out-%d.tar", "--on", "ray"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_until(lambda: "10" in Path("log").read_text().split() if Path("log").exists() else False, running)
    nodes.add(cpus=2)
    nodes.kill(first)
    Path("hold-1").unlink()
    assert running.communicate()[0] == b"18 samples, 372 B: 6 shards written\n"
    assert read() == expected
    assert Path("log").read_text().split().count("10") == 2
    assert not list(Path().glob(".*.partial"))


def test_a_job_whose_program_is_killed_goes_on(nodes, job, expected):
    nodes.add(cpus=2)
    Path("hold-5").touch()
    running = subprocess.Popen(job("out-%d.tar", "--on", "ray"), start_new_session=True)
    wait_until(lambda: len(read()) == SHARDS - 1, running)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    Path("hold-5").unlink()
    times = {name: os.stat(f"out-{name}").st_mtime_ns for name in read()}
    assert "1 shard written; 5 were complete before" in finished(job("out-%d.tar", "--on", "ray"))
    assert read() == expected
    assert {name: os.stat(f"out-{name}").st_mtime_ns for name in times} == times


def test_one_part_may_be_done_on_a_cluster(nodes, job, expected):
    nodes.add()
    assert "2 shards written" in finished(job("out-%d.tar", "--on", "ray", "--part", "1/3"))
    assert read() == {name: expected[name] for name in ("1.tar", "4.tar")}


def test_an_error_says_what_failed_where(nodes, job):
    nodes.add()
    words = [word.replace(":stages", ":failing") for word in job("out-%d.tar", "--on", "ray", "-j", "1")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    said = without_ray(done.stderr)
    assert said.startswith("mpwds proc: error: Odd: 00 is odd; in map(fails)")
    assert 'on sample "00" of in-0.tar' in said
    assert said.count("\n") == 1
    assert not read()


def test_create_writes_what_one_machine_writes(nodes, command, write_files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nodes.add()
    write_files({f"{name}/{n}.txt": b"%d" % n for name in ("cat", "dog") for n in range(5)}, "files")
    words = [*command, "create", "files", "--maxcount", "3", "--shuffle", "--index"]
    finished([*words, "here", "-j", "1"])
    finished([*words, "there", "--on", "ray"])
    here, there = (
        {path.name: path.read_bytes() for path in Path(name).glob("[!.]*")} for name in ("here", "there")
    )  # without the journals, which name the folders
    assert len(there) == 6
    assert there == here


@pytest.mark.parametrize(("name", "ending"), [("convert", "msgpack"), ("shuffle", "tar")])
def test_others_write_what_one_machine_writes(
    nodes, command, write_shard, tmp_path, monkeypatch, name, ending
):
    monkeypatch.chdir(tmp_path)
    nodes.add()
    for shard in range(5):
        write_shard(f"in-{shard}.tar", *({"__key__": f"{shard}{n}", "cls": n} for n in range(9)))
    words = [*command, name, "in-{0..4}.tar"]
    finished([*words, f"here-%d.{ending}", "--part", "0/1"])
    there = [*words, f"out-%d.{ending}", "--on", "ray"]
    assert "45 samples" in finished(there)
    expected = read(f"here-*.{ending}")
    assert read(f"out-*.{ending}") == expected
    assert len(expected) == 5
    assert "5 were complete before" in finished(there)
    assert all(".journal" in path.name for path in Path().glob(".*"))  # no temporary shards
