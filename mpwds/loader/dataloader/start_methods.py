"""How a DataLoader's workers start: as its ``multiprocessing_context`` says, or in the way that works."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from mpwds.errors import MpwdsError
from mpwds.loader.processes import forkserver, processes
from mpwds.loader.processes.launchers import Fork, FromForkServer, Launcher, Spawn
from mpwds.loader.processes.setup import CannotPickle, StillImported, WorkerSetup
from mpwds.warn import warn

_UNLIKE_THIS_PROCESS = (AttributeError, ImportError, RecursionError)
"""What unpickling raises in a process that lacks something that this process has."""

_OPEN_LATER = "open files, locks and connections where samples are fetched"
_ITERATE_LATER = "iterate the loader in a function that is called after the import"


class Forks:
    """Whether a loader's workers have to be forks of this process: known after the first attempt.

    Attributes:
        because: What cannot be pickled, or unpickled; ``None`` as long as everything can.
        might_help: No worker has shown yet whether it can unpickle what it needs.
    """

    because: str | None = None
    might_help = True

    def help_with(self, context: Any, error: BaseException) -> bool:
        """Makes the next workers forks of this process, with a warning, if that helps against an error.

        It does not if the loader has a ``context``, CUDA is in use, or a fork would meet the same error.

        Args:
            context: The loader's ``multiprocessing_context``.
            error: What a worker that is not a fork raised.
        """
        if not isinstance(error, _UNLIKE_THIS_PROCESS) or context is not None or _cuda_is_initialized():
            return False
        self.because = f"the workers cannot unpickle what they need ({type(error).__name__}: {error})"
        _warn_of_fork(self.because, "change it so that another process can unpickle it")
        return True


def launcher_of(context: Any, forks: Forks) -> Callable[[WorkerSetup], Launcher]:
    """What starts the workers of a loader.

    ``"spawn"``: fresh interpreters. ``"forkserver"``: forks of this process' fork server. ``"fork"``: forks
    of this process. Without a context: forks of the fork server; or forks of this process, where what the
    workers need cannot be pickled or comes from a module that is still being imported.

    Raises:
        ValueError: The context has another start method.
    """
    method = None if context is None else context.get_start_method()
    if method is None:
        return functools.partial(_in_the_way_that_works, forks)
    if method == "fork":
        return Fork
    if method == "spawn":
        return functools.partial(_strictly, Spawn)
    if method == "forkserver":
        return functools.partial(_strictly, FromForkServer)
    raise ValueError(
        f"multiprocessing_context {context!r} starts processes by {method!r}; workers can be started by "
        "'fork', 'forkserver' and 'spawn'"
    )


def start_early(dataset: Any, context: Any) -> None:
    """Starts the fork server, if workers will need it, and has it import what the dataset's class needs.

    A class that derives from torch's ``Dataset`` needs torch, which takes most of a second to import; the
    first epoch would wait for it otherwise. An error here shows again when the first epoch begins. In a fork
    server or a worker, nothing is started: each may import the module that makes the loader, and would start
    the next.
    """
    if processes.holds_lifeline() or (context is not None and context.get_start_method() != "forkserver"):
        return
    with processes.interrupts_deferred(), contextlib.suppress(OSError, MpwdsError):
        os.getcwd()  # where that has been removed, importing torch ends the process
        forkserver.start([cls.__module__ for cls in type(dataset).__mro__])


def _in_the_way_that_works(forks: Forks, setup: WorkerSetup) -> Launcher:
    if forks.because is None:
        try:
            return FromForkServer(setup)
        except CannotPickle as error:
            forks.because = f"{error.what}, which cannot be pickled"
            if not _cuda_is_initialized():
                _warn_of_fork(forks.because, _OPEN_LATER)
        except StillImported as error:
            if _cuda_is_initialized():
                raise
            _warn_of_fork(f"the module {error.module!r} is still being imported", _ITERATE_LATER)
            return Fork(setup)
    if _cuda_is_initialized():
        because, forks.because = forks.because, None
        raise TypeError(
            f"{because} for the workers, and CUDA is in use here, which forks of this process cannot use: "
            f"{_OPEN_LATER}, iterate "
            "the loader before CUDA is used, or, if the workers leave CUDA alone, pass "
            "multiprocessing_context='fork'"
        )
    return Fork(setup)


def _strictly(make: Callable[[WorkerSetup], Launcher], setup: WorkerSetup) -> Launcher:
    try:
        return make(setup)
    except CannotPickle as error:
        raise TypeError(
            f"{error.what}, which cannot be pickled for the workers ({error.__cause__}): {_OPEN_LATER}, or "
            "pass multiprocessing_context='fork'"
        ) from error.__cause__


def _warn_of_fork(because: str, instead: str) -> None:
    warn(
        f"{because}, so the workers are forks of this process, with all it has in memory: {instead}, or pass "
        "multiprocessing_context='fork' to say that this is meant"
    )


def _cuda_is_initialized() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())
