"""Feeds deep-learning training from sharded datasets: worker processes, shared memory, a plain iterator."""

from __future__ import annotations

import sys
from typing import Any

from mpwds import names

__all__ = sorted(("__version__", *names.MODULES, *" ".join(names.NAMES.values()).split()))

if not any(isinstance(finder, names.WebdatasetModules) for finder in sys.meta_path):
    sys.meta_path.insert(0, names.WebdatasetModules())  # before the folders of those that are packages


def __getattr__(name: str) -> Any:
    value = names.find(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
