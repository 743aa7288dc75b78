"""What a process has from the trainer, for workers that are no forks of it."""

from __future__ import annotations

import contextlib
import os
import sys
from types import ModuleType
from typing import NamedTuple

from mpwds.imports import after_import
from mpwds.loader.processes import THREAD_VARIABLES

_MULTIPROCESSING = "multiprocessing.process"


class Surroundings(NamedTuple):
    """What a fork of the trainer would have.

    Args:
        environ: Environment variables.
        folder: The working directory; empty where it has been removed.
        path: ``sys.path``.
        processors: The processors that it may run on.
        arguments: ``sys.argv``: modules that parse it when they are imported find it.
        key: By which the servers of ``multiprocessing`` (its managers) know their processes; empty where
            the trainer has not imported it.
    """

    environ: dict[str, str]
    folder: str
    path: list[str]
    processors: list[int]
    arguments: list[str]
    key: bytes


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
    multiprocessing = sys.modules.get(_MULTIPROCESSING)
    key = b"" if multiprocessing is None else bytes(multiprocessing.current_process().authkey)
    processors = sorted(os.sched_getaffinity(0))
    return Surroundings(dict(os.environ), folder, path, processors, list(sys.argv), key)


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
    sys.argv = list(surroundings.arguments)
    _take_key(surroundings.key)


def add(surroundings: Surroundings) -> None:
    """Makes this process have their variables, path and key beside its own, for others work in it too.

    Example:
        >>> add(here())
    """
    variables = surroundings.environ
    os.environ.update({name: variables[name] for name in variables if name not in THREAD_VARIABLES})
    sys.path.extend(item for item in surroundings.path if item not in sys.path)
    _take_key(surroundings.key)


def _take_key(key: bytes) -> None:
    def take(multiprocessing: ModuleType) -> None:
        multiprocessing.current_process().authkey = key

    if key:
        after_import(_MULTIPROCESSING, take)
