"""Which code this process runs, to tell whether a process that imported it earlier runs the same."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NamedTuple

_INSTALLED = tuple(
    os.path.join(folder, "")
    for name, folder in sysconfig.get_paths().items()
    if name in ("stdlib", "platstdlib", "purelib", "platlib")
)


class Code(NamedTuple):
    """What a module was loaded from.

    Args:
        spec: The module's specification; each load and reload makes a new one.
        version: Modification time, size and inode of its file, in an interactive session.
    """

    spec: ModuleSpec
    version: tuple[int, int, int] | None


def is_interactive() -> bool:
    """Whether somebody types the program: into Python, IPython or a notebook.

    Example:
        >>> is_interactive()
        False
    """
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def snapshot(modules: Iterable[str] | None = None) -> dict[str, Code]:
    """The code of imported modules, for :func:`differs`.

    In an interactive session it includes the versions of files, because IPython's ``autoreload`` may patch
    functions without reloading their module. Installed packages are left out of that: people do not edit
    them, and there may be thousands, on a slow disk. Elsewhere files do not count, so that a file that is
    edited during a training does not change the training.

    Args:
        modules: Their names; all modules by default.

    Example:
        >>> before = snapshot()
        >>> differs(before, snapshot())
        False
    """
    with_files = is_interactive()
    found = {}
    for name in list(sys.modules if modules is None else modules):
        module = sys.modules.get(name)
        if isinstance(module, ModuleType):
            attributes = object.__getattribute__(module, "__dict__")  # nothing is loaded by that
            spec = attributes.get("__spec__")
            if spec is not None:
                found[name] = Code(spec, _version(attributes.get("__file__")) if with_files else None)
    return found


def differs(before: dict[str, Code], now: dict[str, Code]) -> bool:
    """Whether a module in both snapshots was loaded again, or its file has changed."""
    for name, code in before.items():
        other = now.get(name, code)
        if other.spec is not code.spec or other.version != code.version:
            return True
    return False


def _version(file: object) -> tuple[int, int, int] | None:
    if not isinstance(file, str) or file.startswith(_INSTALLED):
        return None
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
