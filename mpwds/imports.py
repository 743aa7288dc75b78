"""Import optional packages, or find out without importing them: when they are, and what is a tensor."""

from __future__ import annotations

import importlib
import importlib.util
import operator
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from mpwds.errors import WrongArgument

Action = Callable[[ModuleType], object]


def require(module: str, hint: str) -> Any:
    """Imports a module. If it is missing, the error says ``hint``: what needs it, and how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(hint) from error


def load_object(source: str, importing: Callable[[str], ModuleType] = importlib.import_module) -> Any:
    """The object that ``FILE.py:NAME`` or ``package.module:NAME`` names.

    ``importing`` imports the module. Its folder stays on ``sys.path``, so that others can import it, too.

    Raises ``WrongArgument`` if the text or the name is wrong, ``FileNotFoundError`` if there is no file.
    """
    where, _, name = source.rpartition(":")
    if not where or not name:
        raise WrongArgument(f"{source!r}: expected FILE.py:NAME, such as pipeline.py:dataset")
    path = Path(where)
    if path.suffix == ".py":
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}")
        sys.path.insert(0, str(path.parent.resolve()))
        where = path.stem
    else:
        sys.path.insert(0, "")
    module = importing(where)
    try:
        return operator.attrgetter(name)(module)
    except AttributeError:
        raise WrongArgument(f"{source}: the module {where} has no {name!r}") from None


def tensor_class() -> Any:
    """``torch.Tensor``; while torch is not imported ``()``, of which nothing is an instance or subclass."""
    return getattr(sys.modules.get("torch"), "Tensor", ())  # torch may be half imported


def after_import(name: str, action: Action) -> None:
    """Calls ``action(module)`` once the module ``name`` has been imported: now, if it already is.

    A later call for the same module replaces an action that still waits.
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


class _Watcher:
    """Leaves the search to the other finders, and extends the loader that they find."""

    def __init__(self, name: str, action: Action) -> None:
        self.name = name
        self._action = action
        self._looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking = False
        loader = spec.loader if spec is not None else None
        if loader is not None:

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module  # the loader's own is back
                loader.exec_module(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self._action(module)

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
