"""What this process has open. Tests ask for their own: those of other tests may close at any time."""

import contextlib
import os
import resource


def descriptors():
    """Each descriptor with what it refers to: a set, so that only what is new shows in a difference."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
        except FileNotFoundError:  # the one that lists the others
            continue
    return found


def open_files(folder):
    """The paths below a folder that are open, one for each descriptor."""
    return sorted(target for _, target in descriptors() if target.startswith(f"{folder}/"))


@contextlib.contextmanager
def none_left(spare=0):
    """A context in which no file can be opened, except as many as ``spare``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + spare, hard))
    held = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        for _ in range(spare):
            os.close(held.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held:
            os.close(descriptor)
