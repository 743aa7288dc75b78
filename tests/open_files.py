"""What this process has open. Tests ask for their own: those of other tests may close at any time."""

import os


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
