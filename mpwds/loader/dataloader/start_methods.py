"""How a DataLoader's workers start: as its ``multiprocessing_context`` says, or in the way that works."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from mpwds.errors import MpwdsError
from mpwds.interrupts import interrupts_deferred
from mpwds.loader.engine.group import WorkerGroup
from mpwds.loader.processes import forkserver, processes
from mpwds.loader.processes.launchers import LAUNCHERS, ForkFallback, Launcher, cuda_is_initialized
from mpwds.loader.processes.setup import OPEN_LATER, CannotPickle, WorkerSetup


def launcher_of(context: Any, forks: ForkFallback) -> Callable[[WorkerSetup], Launcher]:
    """Returns what makes a loader's launcher: the start method of its context, or ``forks``."""
    if context is None:
        return forks
    method = context.get_start_method()
    if method not in LAUNCHERS:
        raise ValueError(
            f"multiprocessing_context {context!r} starts processes by {method!r}; workers can be started by "
            "'fork', 'forkserver' and 'spawn'"
        )
    return LAUNCHERS[method]


def start(group: WorkerGroup, context: Any, forks: ForkFallback, timeout: float | None) -> None:
    """Starts the workers: forks of this process where, without a context, others cannot get the dataset."""
    try:
        group.start()
        if context is None and not forks.unpickled:
            group.wait_until_ready(timeout)
            forks.unpickled = not forks.forked
    except CannotPickle as error:
        raise TypeError(
            f"{error.what}, which cannot be pickled for the workers ({error.__cause__}): {OPEN_LATER}, "
            "or pass multiprocessing_context='fork'"
        ) from error.__cause__
    except MpwdsError:
        return  # it is raised again when a batch is asked for
    except (AttributeError, ImportError, RecursionError) as error:  # unpickling lacks what is only here
        group.close()
        if context is not None or cuda_is_initialized():
            raise
        because = f"the workers cannot unpickle what they need ({type(error).__name__}: {error})"
        forks.require(because, "change it so that another process can unpickle it")
    except BaseException:
        group.close()
        raise


def start_early(dataset: Any, context: Any) -> None:
    """Starts the fork server, if workers will need it, and has it import what the dataset's class needs.

    The first epoch would wait for that: torch takes most of a second. Errors show when it begins. A fork
    server or worker starts none: it may import the module that makes the loader, and so would the next one.
    """
    if processes.holds_lifeline() or (context is not None and context.get_start_method() != "forkserver"):
        return
    with interrupts_deferred(), contextlib.suppress(OSError, MpwdsError):
        os.getcwd()  # where that has been removed, importing torch ends the process
        forkserver.start([cls.__module__ for cls in type(dataset).__mro__])
