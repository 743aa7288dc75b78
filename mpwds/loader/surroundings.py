"""What a process inherits from its parent, for workers whose parent is not the trainer."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NamedTuple

from mpwds.loader.processes import THREAD_VARIABLES


class Surroundings(NamedTuple):
    """What a fork of the trainer would have.

    Args:
        environ: Environment variables.
        folder: The working directory; empty where it has been removed.
        path: ``sys.path``.
        processors: The processors that it may run on.
    """

    environ: dict[str, str]
    folder: str
    path: list[str]
    processors: list[int]


def here() -> Surroundings:
    """Those of this process.

    Example:
        >>> here().folder == os.getcwd()
        True
    """
    folder = ""
    with contextlib.suppress(OSError):
        folder = os.getcwd()
    path = [item for item in sys.path if isinstance(item, str)]
    return Surroundings(dict(os.environ), folder, path, sorted(os.sched_getaffinity(0)))


def take_on(surroundings: Surroundings) -> None:
    """Makes this process have them. What it has been told about numbers of threads stays.

    Example:
        >>> take_on(here())
    """
    variables = surroundings.environ
    for name in set(os.environ) - set(variables) - set(THREAD_VARIABLES):
        del os.environ[name]
    os.environ.update(variables)
    if surroundings.folder:
        with contextlib.suppress(OSError):
            os.chdir(surroundings.folder)
    sys.path[:] = surroundings.path
    if sorted(os.sched_getaffinity(0)) != surroundings.processors:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, surroundings.processors)


def add(surroundings: Surroundings) -> None:
    """Makes this process have their variables and path beside its own, for others work in it too.

    Example:
        >>> add(here())
    """
    variables = surroundings.environ
    os.environ.update({name: variables[name] for name in variables if name not in THREAD_VARIABLES})
    sys.path.extend(item for item in surroundings.path if item not in sys.path)
