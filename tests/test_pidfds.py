"""A Python that was built for old systems, such as conda's, lacks what newer kernels offer."""

import errno
import select
import subprocess
import sys

import pytest

import mpwds
from mpwds import pidfds

WITHOUT = """
import os, signal
del os.pidfd_open, signal.pidfd_send_signal, os.memfd_create
import mpwds

def main(method):
    dataset = mpwds.DataPipeline(range(8)).batched(2)
    with mpwds.MultiLoader(dataset, workers=2, output="numpy", start_method=method) as loader:
        return [batch.tolist() for batch in loader]

print([main(method) for method in ("fork", "spawn", "forkserver")])
with mpwds.gopen("pipe:echo ok") as stream:
    print(stream.read())
"""


def test_workers_and_commands_run_in_a_python_without_them():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    epoch = [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert (done.stdout, done.stderr) == (f"{[epoch] * 3}\nb'ok\\n'\n", "")


@pytest.mark.parametrize("lacks", [False, True])
def test_a_process_is_watched_and_killed(lacks, monkeypatch):
    if lacks:
        monkeypatch.delattr("os.pidfd_open")
        monkeypatch.delattr("signal.pidfd_send_signal")
    with subprocess.Popen(["sleep", "600"]) as process, open(pidfds.open_pidfd(process.pid)) as pidfd:
        assert select.select([pidfd], [], [], 0)[0] == []
        pidfds.kill(pidfd.fileno())
        assert select.select([pidfd], [], [], 60)[0] == [pidfd]
        assert process.wait() == -9
        with pytest.raises(ProcessLookupError):
            pidfds.kill(pidfd.fileno())
    with pytest.raises(ProcessLookupError):
        pidfds.open_pidfd(process.pid)


def test_a_kernel_without_them_is_told(monkeypatch):
    def refuse(pid):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("os.pidfd_open", refuse)
    with pytest.raises(OSError, match=r"needs Linux 5\.3 or later"):
        next(iter(mpwds.MultiLoader(range(3), workers=1)))
