"""The environment and the code of the trainer: what workers get of it, and whether it has changed."""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from mpwds.imports import after_import
from mpwds.loader.processes.processes import THREAD_VARIABLES

_MULTIPROCESSING = "multiprocessing.process"
_INHERITED_STATUS = "Umask", "Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp"
_READ_AT_START = "GLIBC_", "KMP_", "LD_", "MALLOC_", "OMP_", "PYTHON", "TZ", *THREAD_VARIABLES


class ParentEnvironment(NamedTuple):
    """The things that a fork of the trainer inherits; ``folder`` and ``authkey`` may be empty."""

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

    Its user and privileges, umask, limits, priority and control group, and the variables that a process reads
    when it starts or imports a numeric library.
    """
    files = [_text_of(name) for name in ("limits", "oom_score_adj", "cgroup")]
    status = [line for line in _text_of("status").splitlines() if line.startswith(_INHERITED_STATUS)]
    variables = sorted(item for item in os.environ.items() if item[0].startswith(_READ_AT_START))
    return (*files, *status, *variables, os.getpriority(os.PRIO_PROCESS, 0))


def _text_of(name: str) -> str:
    try:
        return Path(f"/proc/self/{name}").read_text(errors="replace")
    except OSError:
        return ""


def apply(present: Sequence[Any]) -> None:
    """Gives this process a trainer's environment. Numbers of threads that were set here stay."""
    parent = ParentEnvironment(*present)
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


_INSTALLED = tuple(
    os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_PACKAGES = {"site-packages", "dist-packages"}  # also those of the user and of the system

Code = tuple[ModuleSpec | None, tuple[int, int, int] | None]
"""A module's specification, which each load and reload makes again, and its file's version."""


class LoadedCode:
    """The code of the modules that this process has imported so far.

    In an interactive session the versions of files count too, because IPython's ``autoreload`` may patch
    functions without reloading their module. Those of installed packages, which may be thousands, do not.
    """

    def __init__(self) -> None:
        self._codes: dict[str, Code] = {}
        self.has_changed()

    def has_changed(self) -> bool:
        """True if a module was loaded again, or its file has changed. New modules are added."""
        interactive = is_interactive()
        changed = False
        for name, module in sys.modules.copy().items():
            if type(module) is ModuleType:  # asking a lazy one, which is of another class, would load it
                code = module.__spec__, _version(module) if interactive else None
                known = self._codes.setdefault(name, code)
                changed = changed or known[0] is not code[0] or known[1] != code[1]
        return changed


def codes_of(modules: Iterable[str]) -> list[Code]:
    """The code of some modules, with the versions of their files."""
    found = [sys.modules.get(name) for name in modules]
    return [(module.__spec__, _version(module)) for module in found if type(module) is ModuleType]


def is_interactive() -> bool:
    """True if the program is typed into Python, IPython or a notebook."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def is_installed(module: ModuleType) -> bool:
    """True if a module belongs to Python or to an installed package, or has no file."""
    file = module.__dict__.get("__file__")
    return (
        not isinstance(file, str)
        or file.startswith(_INSTALLED)
        or not _PACKAGES.isdisjoint(file.split(os.sep))
    )


def _version(module: ModuleType) -> tuple[int, int, int] | None:
    if is_installed(module):
        return None
    try:
        status = os.stat(module.__dict__["__file__"])
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
