"""Import optional packages, and run a function when a module is imported, without importing it."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:
    # importlib.abc imports tempfile, shutil, bz2 and lzma, which no worker should start with.
    Loader = MetaPathFinder = object

Action = Callable[[ModuleType], object]


def require(module: str, hint: str) -> Any:
    """Imports a module. If it is missing, the error says ``hint``: what needs it, and how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(hint) from error


def after_import(name: str, action: Action) -> None:
    """Calls ``action(module)`` once the module ``name`` has been imported: now, if it already is.

    A later call for the same module replaces an action that still waits.

    Example:
        >>> after_import("sys", lambda module: print(module.__name__))
        sys
    """
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if not (isinstance(finder, _Watcher) and finder.name == name)
    ]
    module = sys.modules.get(name)
    # A module is listed as soon as its import begins; its spec tells whether the import has ended.
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        action(module)
    else:
        sys.meta_path.insert(0, _Watcher(name, action))


class _Watcher(MetaPathFinder):
    """Leaves the search to the other finders, and wraps the loader that they find."""

    def __init__(self, name: str, action: Action) -> None:
        self.name = name
        self._action = action
        self._looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenActing(spec.loader, self)
        return spec

    def act(self, module: ModuleType) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._action(module)


class _ThenActing(Loader):
    def __init__(self, loader: Loader, watcher: _Watcher) -> None:
        self._loader = loader
        self._watcher = watcher

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Restore the module's own loader: some modules find their resources through it.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._watcher.act(module)
