"""How a DataLoader's workers start: as its ``multiprocessing_context`` says, or in the way that works."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import torch

from mpwds.errors import MpwdsError
from mpwds.loader.engine.group import WorkerGroup
from mpwds.loader.processes import forkserver, processes
from mpwds.loader.processes.launchers import LAUNCHERS, Fork, Launcher
from mpwds.loader.processes.setup import CannotPickle, StillImported, WorkerSetup
from mpwds.warn import warn

_OPEN_LATER = "open files, locks and connections where samples are fetched"


class Forks:
    """Whether the workers of a loader without a context have to be forks of this process."""

    reason: tuple[str, str] | None = None  # why they have to, and what to change
    unpickled = False  # workers have shown that they can unpickle what they need

    def require(self, because: str, instead: str) -> None:
        """Makes the next workers forks, and warns the first time. A TypeError if CUDA is in use."""
        if _cuda_is_initialized():
            raise TypeError(
                f"{because}, so the workers would be forks of this process, but CUDA is in use here, which "
                f"forks cannot use: {instead}, iterate the loader before CUDA is used, or, if the workers "
                "leave CUDA alone, pass multiprocessing_context='fork'"
            )
        if self.reason is None:
            warn(
                f"{because}, so the workers are forks of this process, with all it has in memory: {instead}, "
                "or pass multiprocessing_context='fork' to say that this is meant"
            )
        self.reason = because, instead


def launcher_of(context: Any, forks: Forks) -> Callable[[WorkerSetup], Launcher]:
    """What starts the workers of a loader: as its context says; without one, forks of the fork server."""
    method = "forkserver" if context is None else context.get_start_method()
    make = LAUNCHERS.get(method)
    if make is None:
        raise ValueError(
            f"multiprocessing_context {context!r} starts processes by {method!r}; workers can be started by "
            "'fork', 'forkserver' and 'spawn'"
        )

    def launcher(setup: WorkerSetup) -> Launcher:
        if forks.reason is None:
            return make(setup)
        forks.require(*forks.reason)
        return Fork(setup)

    return launcher


def start(group: WorkerGroup, context: Any, forks: Forks, timeout: float | None) -> None:
    """Starts the workers: forks of this process where, without a context, others cannot get the dataset."""
    try:
        group.start()
        if context is None and not forks.unpickled:
            group.wait_until_ready(timeout)
            forks.unpickled = True
    except CannotPickle as error:
        if context is not None:
            raise TypeError(
                f"{error.what}, which cannot be pickled for the workers ({error.__cause__}): {_OPEN_LATER}, "
                "or pass multiprocessing_context='fork'"
            ) from error.__cause__
        forks.require(f"{error.what}, which cannot be pickled", _OPEN_LATER)
    except StillImported as error:
        if context is not None:
            raise
        later = "iterate the loader in a function that is called after the import"
        forks.require(f"the module {error.module!r} is still being imported", later)
        group.start()
        forks.reason = None  # the next epoch may begin after the import
    except MpwdsError:
        return  # it is raised again when a batch is asked for
    except (AttributeError, ImportError, RecursionError) as error:  # unpickling lacks what is only here
        group.close()
        if context is not None or _cuda_is_initialized():
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
    with processes.interrupts_deferred(), contextlib.suppress(OSError, MpwdsError):
        os.getcwd()  # where that has been removed, importing torch ends the process
        forkserver.start([cls.__module__ for cls in type(dataset).__mro__])


def _cuda_is_initialized() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch gives it no types
