"""Feeds deep-learning training from sharded datasets: worker processes, shared memory, a plain iterator."""

from __future__ import annotations

from typing import Any

from mpwds import names

__all__ = sorted(("__version__", *names.MODULES, *" ".join(names.NAMES.values()).split()))

names.install()


def __getattr__(name: str) -> Any:
    value = names.find(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
