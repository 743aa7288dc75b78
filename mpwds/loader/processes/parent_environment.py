"""The trainer's environment, sent to workers that are not forks of it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from mpwds.imports import after_import
from mpwds.loader.processes.processes import THREAD_VARIABLES

_MULTIPROCESSING = "multiprocessing.process"
_INHERITED_STATUS = "Umask", "Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp"
_READ_AT_START = "GLIBC_", "KMP_", "LD_", "MALLOC_", "OMP_", "PYTHON", *THREAD_VARIABLES


class ParentEnvironment(NamedTuple):
    """What a fork of the trainer would inherit; ``folder`` and ``authkey`` are empty if there is none."""

    environ: dict[str, str]
    folder: str
    path: list[str]
    processors: list[int]
    argv: list[str]
    authkey: bytes


def current() -> ParentEnvironment:
    """This process' environment."""
    folder = ""
    with contextlib.suppress(OSError):
        folder = os.getcwd()
    path = [item for item in sys.path if isinstance(item, str)]
    processors = sorted(os.sched_getaffinity(0))
    multiprocessing = sys.modules.get(_MULTIPROCESSING)
    authkey = b"" if multiprocessing is None else bytes(multiprocessing.current_process().authkey)
    return ParentEnvironment(dict(os.environ), folder, path, processors, list(sys.argv), authkey)


def inherited() -> tuple[object, ...]:
    """What a child of this process inherits and cannot always change later, to compare.

    That is its user and privileges, umask, limits, priority and control group; and the variables that a
    process reads when it starts, or imports a numeric library.
    """
    files = [_text_of(name) for name in ("limits", "oom_score_adj", "cgroup")]
    status = [line for line in _text_of("status").splitlines() if line.startswith(_INHERITED_STATUS)]
    variables = [item for item in os.environ.items() if item[0].startswith(_READ_AT_START)]
    return (*files, *status, *variables, os.getpriority(os.PRIO_PROCESS, 0))


def _text_of(name: str) -> str:
    try:
        return Path(f"/proc/self/{name}").read_text(errors="replace")
    except OSError:
        return ""


def adopt(environment: Sequence[Any]) -> None:
    """Gives this process a trainer's environment. Numbers of threads that were set here stay."""
    parent = ParentEnvironment(*environment)
    for name in set(os.environ) - set(parent.environ) - set(THREAD_VARIABLES):
        del os.environ[name]
    os.environ.update(parent.environ)
    if parent.folder:
        with contextlib.suppress(OSError):
            os.chdir(parent.folder)
    sys.path[:] = parent.path
    if sorted(os.sched_getaffinity(0)) != parent.processors:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, parent.processors)
    sys.argv = list(parent.argv)
    if parent.authkey:

        def take_key(multiprocessing: ModuleType) -> None:
            multiprocessing.current_process().authkey = parent.authkey

        after_import(_MULTIPROCESSING, take_key)
