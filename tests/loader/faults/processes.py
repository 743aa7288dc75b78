"""Processes, looked at from outside, and threads of this one."""

import os
import threading
import time
from pathlib import Path

import psutil

TOKEN = "MPWDS_TEST_TOKEN"
PATIENCE_S = 600
"""How long something may take that is over at once on a machine with nothing else to do."""


def with_token(token):
    """The processes that were started, by whomever, with this token in their environment."""
    wanted = f"{TOKEN}={token}".encode()
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if wanted in _environment(folder)]


def runs(pid):
    """Whether a process is there and has not ended."""
    return state(pid) not in ("", "Z", "X")


def state(pid):
    """The letter that ``ps`` shows for a process; empty if there is none."""
    return _stat(pid)[:1]


def wait_until_gone(pids, within_s=PATIENCE_S):
    wait_until(lambda: not any(map(runs, pids)), f"{[pid for pid in pids if runs(pid)]} to end", within_s)


def wait_until_idle(pid):
    """Waits until a process' main thread sleeps and uses no time: it waits for something."""
    seen = [""]

    def is_idle():
        seen.append(_stat(pid))
        return len(seen) > 6 and len(set(seen[-5:])) == 1 and seen[-1].startswith(("S", "T"))

    wait_until(is_idle, f"process {pid} to be idle")


def wait_until(condition, what, within_s=PATIENCE_S):
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {within_s} s for {what}")
        time.sleep(0.01)


def _stat(pid):
    """State and used time of a process' main thread."""
    try:
        fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return " ".join([fields[0], *fields[11:13]])


def _environment(folder):
    try:
        return (folder / "environ").read_bytes().split(b"\0") if runs(int(folder.name)) else ()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ()


def shared_memory_left():
    """Names in ``/dev/shm`` that a process of ours made which is gone."""
    names = [name for name in os.listdir("/dev/shm") if name.startswith("mpwds-")]
    return [name for name in names if not runs(int(name.split("-")[1]))]


def children(recursive=False):
    """The processes that this one started, and with ``recursive`` those that they did."""
    return {child.pid for child in psutil.Process().children(recursive)}


def in_threads(*functions):
    """Calls each function in a thread of its own, and waits for them."""
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
