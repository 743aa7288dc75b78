"""Connects to a Ray cluster, and packs what its machines get."""

from __future__ import annotations

import os
import socket
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

import cloudpickle

from mpwds.imports import require
from mpwds.pickling import dumps

_CONNECT_S = 10.0
_PACKAGES = {"site-packages", "dist-packages"}  # also those of the user and of the system
_NEEDS_RAY = "clusters need Ray: pip install 'mpwds[ray]'"


def connect(address: str | None = None) -> Any:
    """Returns the module ``ray``, connected to a cluster. What its machines print is in Ray's logs.

    Unless the program has called ``ray.init``, the cluster is that of ``RAY_ADDRESS``, or the one on this
    machine, or a new one on this machine; a new one is not made for the address ``"auto"``.

    Raises ``ImportError`` if Ray is not installed, ``ConnectionError`` if there is no such cluster.
    """
    ray = require("ray", _NEEDS_RAY)
    if not ray.is_initialized():
        _check_answers(os.environ.get("RAY_ADDRESS", ""))
        ray.init(address, logging_level="error", log_to_driver=False)
    return ray


def _check_answers(address: str) -> None:
    """Raises ``ConnectionError`` if nothing listens at ``HOST:PORT``. Ray itself tries for many minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or "/" in host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except OSError as error:
        raise ConnectionError(
            f"no Ray cluster answers at RAY_ADDRESS={address} ({error}): start it there with `ray start "
            "--head`, or unset RAY_ADDRESS"
        ) from error


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
    # A module may have several names.
    own = {module.__name__: module for module in list(sys.modules.values()) if _is_own(module)}
    own = {name: module for name, module in own.items() if name not in known}
    for module in own.values():
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own.values():
            cloudpickle.unregister_pickle_by_value(module)


def _is_own(module: object) -> TypeGuard[ModuleType]:
    """True if a module's file is not installed."""
    path = getattr(module, "__file__", None)
    if not isinstance(module, ModuleType) or not path or module.__name__.partition(".")[0] == "mpwds":
        return False
    folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    is_installed = any(map(Path(path).is_relative_to, folders)) or _PACKAGES.intersection(Path(path).parts)
    return sys.modules.get(module.__name__) is module and not is_installed
