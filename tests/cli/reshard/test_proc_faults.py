"""``mpwds proc`` is killed, and goes on: each shard is written once, and whole."""

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

import mpwds
from tests.cli.running import wait_until

PIPELINE = """
import os, time
import mpwds

def logged(sample):
    with open("log", "a") as log:
        log.write(sample["__key__"] + chr(10))
    while int(sample["__key__"][:2]) >= int(os.environ.get("HOLD", 99)) and not os.path.exists("go"):
        time.sleep(0.01)
    return sample

stages = [mpwds.map(logged)]
"""
SHARDS = 8


@pytest.fixture(scope="module")
def folder(command, tmp_path_factory):
    """A folder with the pipeline, shards, and those that an undisturbed run makes of them."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "pipeline.py").write_text(PIPELINE)
    for shard in range(SHARDS):
        with mpwds.TarWriter(folder / f"in-{shard:02}.tar") as sink:
            for number in range(5):
                sink.write({"__key__": f"{shard:02}{number}", "txt": b"x" * 9000})
    words = [*command, "proc", "pipeline.py:stages", "in-{00..07}.tar", "expected-%02d.tar", "-j", "2"]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def words(command, folder):
    stages, shards = f"{folder}/pipeline.py:stages", f"{folder}/in-{{00..07}}.tar"
    return [*command, "proc", stages, shards, "out-%02d.tar", "-j", "2"]


@pytest.fixture
def expected(folder):
    return [(folder / f"expected-{shard:02}.tar").read_bytes() for shard in range(SHARDS)]


def written():
    return sorted(path.name for path in Path().glob("out-*.tar"))


def begun(words, shards):
    """A run in a group of its own that has written so many shards, and waits until there is a file ``go``."""
    process = subprocess.Popen(words, env={**os.environ, "HOLD": str(shards)}, start_new_session=True)
    wait_until(lambda: len(written()) == shards, process)
    return process


def finished(words, expected):
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert [Path(f"out-{shard:02}.tar").read_bytes() for shard in range(SHARDS)] == expected
    assert not list(Path().glob(".*.partial"))
    return done.stdout


@pytest.mark.parametrize("whole_machine", [True, False])
def test_a_killed_run_goes_on(words, expected, whole_machine):
    process = begun(words, 4)
    if whole_machine:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    else:  # its workers notice
        workers = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        psutil.wait_procs(workers, timeout=600)
        assert not any(worker.is_running() for worker in workers)
    complete = written()
    times = {name: os.stat(name).st_mtime_ns for name in complete}
    before = Path("log").read_text().split()
    out = finished(words, expected)
    assert "4 were complete before" in out
    assert {name: os.stat(name).st_mtime_ns for name in complete} == times
    again = Path("log").read_text().split()[len(before) :]
    shards_again = {int(key[:2]) for key in again}
    assert shards_again == set(range(SHARDS)) - {int(name[4:6]) for name in complete}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_goes_on(words, expected, number):
    process = begun(words, 2)
    process.send_signal(number)
    assert process.wait(600) == 130
    assert len(written()) == 2
    assert not list(Path().glob(".*.partial"))
    finished(words, expected)


@pytest.mark.slow
def test_a_killed_worker_is_replaced(words, expected):
    process = begun(words, 2)
    children = psutil.Process(process.pid).children
    wait_until(lambda: any(map(_has_partial_file, children(recursive=True))), process)
    next(filter(_has_partial_file, children(recursive=True))).kill()
    Path("go").touch()
    assert process.wait(600) == 0
    finished(words, expected)


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends(words, expected):
    for shards in range(2, SHARDS, 2):
        process = begun(words, shards)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert all(Path(name).read_bytes() == expected[int(name[4:6])] for name in written())
    finished(words, expected)


def test_a_run_that_is_refused_leaves_what_others_write(words):
    with mpwds.TarWriter("out-01.tar") as sink:
        sink.write({"__key__": "mine", "cls": 1})
        Path("out-00.tar").write_bytes(b"")
        done = subprocess.run(words, capture_output=True, text=True)
        assert "out-00.tar exists already" in done.stderr
    assert written() == ["out-00.tar", "out-01.tar"]


def _has_partial_file(process):
    try:
        return any(".partial" in file.path for file in process.open_files())
    except psutil.Error:
        return False
