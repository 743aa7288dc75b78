"""The code that this process has imported, to tell whether it has changed since."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from types import ModuleType

_INSTALLED = tuple(
    os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib", "purelib", "platlib")
)

Code = tuple[ModuleSpec | None, tuple[int, int, int] | None]
"""A module's specification, which each load and reload makes again, and its file's version."""


class LoadedCode:
    """The code of the modules that this process has imported so far.

    In an interactive session the versions of files count too, because IPython's ``autoreload`` may patch
    functions without reloading their module; not those of installed packages, which may be thousands, on a
    slow disk. Elsewhere files do not count: editing one does not change a training that runs.
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
    return not isinstance(file, str) or file.startswith(_INSTALLED)


def _version(module: ModuleType) -> tuple[int, int, int] | None:
    if is_installed(module):
        return None
    try:
        status = os.stat(module.__dict__["__file__"])
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
