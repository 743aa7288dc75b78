"""Connects to a Ray cluster, packs what its machines get, and runs tasks on all of them."""

from __future__ import annotations

import itertools
import os
import pickle
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from types import ModuleType
from typing import Any, TypeVar

import cloudpickle

from mpwds.errors import MpwdsError
from mpwds.imports import require
from mpwds.loader.messages.protocol import describe_error, revive_error
from mpwds.loader.processes.environment import is_installed
from mpwds.loader.processes.setup import OPEN_LATER, CannotPickle, find_unpicklable
from mpwds.pickling import dumps

S = TypeVar("S")
T = TypeVar("T")

_CONNECT_S = 10.0
_AHEAD = 2  # tasks for each processor
_RETRIES = 20  # of a task whose machine or process is lost
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

    Raises ``CannotPickle``, which names the part that cannot be pickled.
    """
    with _by_value():
        try:
            return dumps(item)
        except Exception as error:
            what = find_unpicklable(item)
            raise CannotPickle(
                f"{what}, which cannot be sent to other machines ({type(error).__name__}: {error}): "
                f"{OPEN_LATER}",
                what,
            ) from error


@contextmanager
def _by_value() -> Iterator[None]:
    known = {*cloudpickle.list_registry_pickle_by_value(), "__main__"}  # cloudpickle never sends its name
    own = {
        module for module in list(sys.modules.values()) if _is_own(module) and module.__name__ not in known
    }
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


def _is_own(module: object) -> bool:
    """True if a module's file is not installed."""
    if not isinstance(module, ModuleType) or module.__name__.partition(".")[0] == "mpwds":
        return False
    return sys.modules.get(module.__name__) is module and not is_installed(module)


def run_tasks(items: Sequence[S], work: Callable[[S], Iterator[T]], most: int = 0) -> Iterator[T]:
    """Yields all that ``work``, a generator function, yields for each item, in any order.

    Each item is a task. ``most`` tasks are under way at a time; 0 are twice as many as the cluster has
    processors, also when it grows. A task starts again elsewhere if its machine is lost, so ``work`` must
    tolerate that. Tasks run in the current folder if their machine has it.

    Raises what ``work`` raises, and ``MpwdsError`` if Ray gives a task up.
    """
    with connected() as ray:
        task = ray.remote(num_cpus=1, max_retries=_RETRIES, scheduling_strategy="SPREAD")(_do)
        packed = ray.put(pack((work, os.getcwd())))
        running: list[Any] = []
        left = iter(items)
        try:
            while True:
                room = (most or _AHEAD * int(ray.cluster_resources().get("CPU", 1))) - len(running)
                running += [task.remote(packed, pack(item)) for item in itertools.islice(left, max(0, room))]
                if not running:
                    return
                finished, running = ray.wait(running)
                for each in finished:
                    results, error = pickle.loads(ray.get(each))
                    if error is not None:
                        raise revive_error(error, f"a task on {error['host']}")
                    yield from results
        except ray.exceptions.RayError as error:
            raise MpwdsError(f"Ray gave a task up: {error}") from error
        finally:
            for each in running:
                ray.cancel(each, force=True)


def _do(packed: bytes, item: bytes) -> bytes:
    """Does one item's work; returns the pickled results, or the fields of an error."""
    work, folder = pickle.loads(packed)
    with suppress(FileNotFoundError):
        os.chdir(folder)
    try:
        return pickle.dumps((list(work(pickle.loads(item))), None))
    except Exception as error:
        return pickle.dumps(([], {"host": socket.gethostname(), **describe_error(error)}))
