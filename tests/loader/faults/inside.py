"""For programs that a test runs: what they possess, which must be the same after a fault as before."""

import collections
import contextlib
import gc
import os
import threading
import time

from mpwds.loader.launching import forkserver


def possessions():
    """This process' children, descriptors, threads and mapped segments."""
    held = collections.Counter(("descriptor", _target(number)) for number in os.listdir("/proc/self/fd"))
    held.update(("child", pid) for pid in _children())
    held.update(("thread", thread.name) for thread in threading.enumerate())
    with open("/proc/self/maps") as maps:
        held["mapping"] = sum("memfd:mpwds" in line or "/dev/shm/" in line for line in maps)
    return held


@contextlib.contextmanager
def nothing_left():
    """Raises AssertionError if the block leaves anything behind, a minute later at the latest."""
    before = possessions()
    yield
    deadline = time.monotonic() + 300
    while (left := possessions() - before) and time.monotonic() < deadline:
        forkserver.let_go()
        gc.collect()
        time.sleep(0.02)
    if left:
        raise AssertionError(f"left behind: {dict(left)}")


def _target(descriptor):
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").partition(":")[0]
    except FileNotFoundError:  # the one that listed the others
        return ""


def _children():
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/self/task/{task}/children") as children:
            yield from children.read().split()
