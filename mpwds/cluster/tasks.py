"""Tasks of a Ray cluster: work for many items, on all of its machines."""

from __future__ import annotations

import itertools
import os
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from mpwds.cluster.engine import connected, pack
from mpwds.errors import MpwdsError
from mpwds.loader.messages.protocol import describe_error, revive_error

S = TypeVar("S")
T = TypeVar("T")

_AHEAD = 2  # tasks for each processor
_RETRIES = 20  # of a task whose machine or process is lost


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
