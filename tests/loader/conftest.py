"""Datasets and scripts for the loader's tests."""

import io
import os
import signal
import subprocess
import sys
import tarfile
import textwrap

import numpy as np
import psutil
import pytest

from mpwds.loader.processes import forkserver
from tests.fake_cuda import kept_to_the_rules


@pytest.fixture(autouse=True)
def _nothing_left(nothing_left):
    """Every test of the loader leaves nothing behind."""


@pytest.fixture(scope="module")
def one_fork_server():
    """One for all tests of a module, so that they need not wait for a new one each."""
    forkserver.ready([])


@pytest.fixture(scope="module")
def quick_workers():
    """The fork server, from which a MultiLoader's workers come by default, has torch already."""
    forkserver.ready(["torch"])


@pytest.fixture
def cuda():
    with kept_to_the_rules("when asked") as fake:
        yield fake


@pytest.fixture
def shards(tmp_path):
    """Four tar shards of ten samples, each an 8-byte ``npy`` field and a ``cls``; returns the pattern."""
    number = 0
    for shard in range(4):
        with tarfile.open(tmp_path / f"train-{shard}.tar", "w") as archive:
            for _ in range(10):
                array = io.BytesIO()
                np.save(array, np.full((4, 3), number, np.float32))
                for field, data in (("npy", array.getvalue()), ("cls", str(number).encode())):
                    member = tarfile.TarInfo(f"sample{number:03}.{field}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
                number += 1
    return f"{tmp_path}/train-{{0..3}}.tar"


class Script:
    """A program of a user, running."""

    def __init__(self, path, arguments):
        self.process = subprocess.Popen(
            [sys.executable, str(path), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def line(self):
        """The next line that it prints."""
        return self.process.stdout.readline().strip()

    def workers(self):
        return psutil.Process(self.process.pid).children(recursive=True)

    def interrupt(self):
        """Ctrl-C: SIGINT to the whole foreground group, workers included."""
        os.killpg(self.process.pid, signal.SIGINT)

    def finish(self):
        """Waits for its end: exit status, output, errors."""
        output, errors = self.process.communicate(timeout=240)
        return self.process.returncode, output, errors


@pytest.fixture
def script(tmp_path):
    """Starts a program from its text, as a file that a user would run."""
    started = []

    def start(text, *arguments):
        path = tmp_path / f"script{len(started)}.py"
        path.write_text(textwrap.dedent(text))
        started.append(Script(path, arguments))
        return started[-1]

    yield start
    for running in started:
        running.process.kill()
        running.process.communicate()
