"""Connects to a Ray cluster, and packs what its machines get."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from mpwds.imports import require
from mpwds.pickling import dumps

_NEEDS_RAY = "clusters need Ray: pip install 'mpwds[ray]'"


def connect(address: str | None = None) -> Any:
    """Returns the module ``ray``, connected to a cluster. What its machines print is in Ray's logs.

    Unless the program has called ``ray.init``, the cluster is that of ``RAY_ADDRESS``, or the one on this
    machine, or a new one on this machine; a new one is not made for the address ``"auto"``.

    Raises ``ImportError`` if Ray is not installed, ``ConnectionError`` if there is no such cluster.
    """
    ray = require("ray", _NEEDS_RAY)
    if not ray.is_initialized():
        ray.init(address, logging_level="error", log_to_driver=False)
    return ray


@contextmanager
def connected() -> Iterator[Any]:
    """:func:`connect`, for a while. What Ray itself prints meanwhile goes to standard error."""
    with redirect_stdout(sys.stderr):
        ray = require("ray", _NEEDS_RAY)
        was_connected = ray.is_initialized()
        try:
            yield connect()
        finally:
            if not was_connected:
                ray.shutdown()


def pack(item: Any) -> bytes:
    """Pickles an object for other machines, for ``pickle.loads``.

    Those machines have installed packages. The code of other modules, as of a file ``pipeline.py``, is a part
    of the pickle; modules that a function imports when it runs are not.
    """
    with _by_value():
        return dumps(item)


@contextmanager
def _by_value() -> Iterator[None]:
    known = {*cloudpickle.list_registry_pickle_by_value(), "__main__"}  # cloudpickle never sends its name
    own = [module for name, module in list(sys.modules.items()) if name not in known and _is_own(module)]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


def _is_own(module: object) -> bool:
    """True if a module's file is not installed."""
    path = getattr(module, "__file__", None)
    if not isinstance(module, ModuleType) or not path or module.__name__.partition(".")[0] == "mpwds":
        return False
    return sys.modules.get(module.__name__) is module and not any(
        map(Path(path).is_relative_to, _installed())
    )


def _installed() -> list[str]:
    return [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
