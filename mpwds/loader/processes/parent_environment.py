"""The trainer's environment, sent to workers that are not forks of it."""

from __future__ import annotations

import contextlib
import os
import sys
from types import ModuleType
from typing import NamedTuple

from mpwds.imports import after_import
from mpwds.loader.processes.processes import THREAD_VARIABLES

_MULTIPROCESSING = "multiprocessing.process"


class ParentEnvironment(NamedTuple):
    """What a fork of the trainer would inherit.

    Args:
        environ: Environment variables.
        folder: The working directory; empty if it has been removed.
        path: ``sys.path``.
        processors: The processors that it may run on.
        arguments: ``sys.argv``, which some modules parse when they are imported.
        key: The ``authkey`` of ``multiprocessing``, for its managers; empty if it is not imported.
    """

    environ: dict[str, str]
    folder: str
    path: list[str]
    processors: list[int]
    arguments: list[str]
    key: bytes


def current() -> ParentEnvironment:
    """This process' environment."""
    folder = ""
    with contextlib.suppress(OSError):
        folder = os.getcwd()
    path = [item for item in sys.path if isinstance(item, str)]
    multiprocessing = sys.modules.get(_MULTIPROCESSING)
    key = b"" if multiprocessing is None else bytes(multiprocessing.current_process().authkey)
    processors = sorted(os.sched_getaffinity(0))
    return ParentEnvironment(dict(os.environ), folder, path, processors, list(sys.argv), key)


def adopt(parent: ParentEnvironment) -> None:
    """Gives this process the environment of its trainer. Numbers of threads that were set here stay."""
    variables = parent.environ
    for name in set(os.environ) - set(variables) - set(THREAD_VARIABLES):
        del os.environ[name]
    os.environ.update(variables)
    if parent.folder:
        with contextlib.suppress(OSError):
            os.chdir(parent.folder)
    sys.path[:] = parent.path
    if sorted(os.sched_getaffinity(0)) != parent.processors:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, parent.processors)
    sys.argv = list(parent.arguments)
    if parent.key:

        def take_key(multiprocessing: ModuleType) -> None:
            multiprocessing.current_process().authkey = parent.key

        after_import(_MULTIPROCESSING, take_key)
