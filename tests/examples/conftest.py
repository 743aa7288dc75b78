"""Runs programs as a user would, on one rank or on several."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Seldom, torch's gloo threads abort a rank that has done its work and ends, with torch's own DataLoader too.
GLOO_ABORTS = "terminate called without an active exception"
collect_ignore_glob = ["programs/*"]  # run, not imported


@pytest.fixture
def run():
    """Runs a program; returns the lines that it prints."""

    def run(program, *arguments, ranks=1):
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command = [sys.executable, *(launcher if ranks > 1 else []), str(program), *map(str, arguments)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        for _ in range(3):
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if GLOO_ABORTS not in done.stderr:
                break
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout.splitlines()

    return run
