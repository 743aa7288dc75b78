"""Processes that are this one's children."""

import subprocess
import sys

from mpwds.loader.processes.processes import WorkerProcess


def test_a_worker_that_other_code_has_reaped_has_ended():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    worker = WorkerProcess(child.pid)
    assert worker.wait(0) is True
    assert worker.exitcode is None
