"""Even epochs where a rank fails, is killed or does not come: the others get an error, and nobody hangs."""

import os
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

pytestmark = pytest.mark.slow

PREAMBLE = """
import os, signal, sys
import torch, torch.distributed as dist
from mpwds import DataPipeline, EvenEpochError, MultiLoader, WorkerDied

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=2)

def outcome(loader, upto=None):
    seen = 0
    try:
        for batch in loader:
            seen += 1
            if seen == upto:
                os.kill(os.getpid(), signal.SIGKILL)
    except Exception as error:
        print(seen, type(error).__name__, error, flush=True)
    else:
        print(seen, "batches", flush=True)

def numbers(count):
    return DataPipeline(range(2 * count)).select(lambda number: True)
"""

FAILING = (
    PREAMBLE
    + """
def fails(number):
    if number == 9:
        raise OSError("disk on fire")
    return True

outcome(MultiLoader(DataPipeline(range(40)).select(fails), workers=1, even="wrap"))
outcome(MultiLoader(numbers(10), workers=0, even=["drop", "pad"][rank]))
outcome(MultiLoader(numbers(10), workers=0, even="drop"))
outcome(MultiLoader(numbers(10), workers=1, even="drop"), upto=[None, 4][rank])
"""
)

WAITING = (
    PREAMBLE
    + """
def interrupted():
    try:
        print("waits", flush=True)
        outcome(MultiLoader(numbers(10), workers=1, even="drop"))
    except KeyboardInterrupt:
        print("interrupted", flush=True)

def late():
    outcome(MultiLoader(numbers(10), workers=0, even="drop", timeout=0.1))

if rank == 1:
    if sys.argv[2] == "later":
        outcome(MultiLoader(numbers(10), workers=0, even="drop"))
    sys.stdin.read()
elif sys.argv[2] == "later":
    outcome(MultiLoader(numbers(10), workers=0, even="drop"))
    late()
    interrupted()
else:
    late()
    interrupted()
"""
)


class Job:
    """Two ranks of a program, without anything that ends one when the other fails."""

    def __init__(self, program, folder, *arguments):
        folder.mkdir()
        path = folder / "program.py"
        path.write_text(textwrap.dedent(program))
        self.ranks = [
            subprocess.Popen(
                [sys.executable, str(path), f"file://{folder}/meeting", *arguments],
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(2)
        ]

    def end(self):
        """Ends what still runs; returns the workers that there were."""
        running = [rank for rank in self.ranks if rank.poll() is None]
        workers = [worker for rank in running for worker in psutil.Process(rank.pid).children(recursive=True)]
        for rank in running:
            rank.kill()
            rank.communicate()
        return workers


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """The programs, all of them running."""
    folder = tmp_path_factory.mktemp("failures")
    started = {
        "failing": Job(FAILING, folder / "failing"),
        "first": Job(WAITING, folder / "first", "first"),
        "later": Job(WAITING, folder / "later", "later"),
    }
    yield started
    workers = [worker for job in started.values() for worker in job.end()]
    assert psutil.wait_procs(workers, timeout=600)[1] == []


@pytest.fixture(autouse=True)
def _nothing_left():
    """The programs run through all tests: what they leave is looked at when they have ended."""


def test_a_rank_that_fails_or_is_killed_ends_the_epoch_of_the_others(jobs):
    first, second = jobs["failing"].ranks
    lines = second.communicate(timeout=600)[0].splitlines()
    told = first.communicate(timeout=600)[0].splitlines()
    assert (first.returncode, second.returncode) == (0, -signal.SIGKILL)
    seen, *failure = lines[0].split(maxsplit=2)
    assert failure == ["OSError", "disk on fire"]
    assert told[0].startswith(f"{seen} EvenEpochError rank 1 failed while it made its next batches")
    for output, own in ((told, "drop"), (lines, "pad")):
        assert output[1].startswith("0 EvenEpochError the ranks' loaders differ in even, from drop to pad")
        assert f"{own}: give the loader the same even=" in output[1]
        assert output[2] == "10 batches"
    assert "EvenEpochError rank 0 waited for the other ranks" in told[3]
    assert "one of them is gone" in told[3]


@pytest.mark.parametrize("when", ["first", "later"])
def test_a_rank_that_does_not_come_is_waited_for_as_long_as_timeout_says_or_ctrl_c(when, jobs):
    first, second = jobs[when].ranks
    if when == "later":
        assert first.stdout.readline() == "10 batches\n"
    waited = first.stdout.readline()
    assert "EvenEpochError rank 0 waited for the other ranks" in waited
    assert "did not come within 0.5 seconds" in waited
    assert first.stdout.readline() == "waits\n"
    first.send_signal(signal.SIGINT)
    assert first.communicate(timeout=600)[0] == "interrupted\n"
    assert (first.returncode, second.poll()) == (0, None)
    second.communicate("", timeout=600)
