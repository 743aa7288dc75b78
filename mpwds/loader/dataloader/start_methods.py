"""How a DataLoader's workers start: from a context that the user names, or in the way that works."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mpwds.errors import MpwdsError
from mpwds.loader.processes import forkserver, lifeline, processes
from mpwds.loader.processes.launchers import Fork, FromForkServer, Launcher, Spawn
from mpwds.loader.processes.setup import CannotPickle, StillImported, WorkerSetup
from mpwds.warn import warn

if TYPE_CHECKING:
    from mpwds.loader.dataloader.data_loader import DataLoader

MakeLauncher = Callable[[WorkerSetup], Launcher]

_UNLIKE_THIS_PROCESS = (AttributeError, ImportError, RecursionError)
"""What unpickling raises in a process that lacks something, or finds it in another order, than this one."""


def launcher_of(loader: DataLoader[Any]) -> MakeLauncher:
    """What starts the workers of a loader.

    ``"spawn"``: fresh interpreters. ``"forkserver"``: forks of this process' fork server. ``"fork"``: forks
    of this process. Without a context: forks of the fork server; or forks of this process, where what the
    workers need cannot be pickled or comes from a module that is still being imported.

    Raises:
        ValueError: The context has another start method.
    """
    context = loader.multiprocessing_context
    method = None if context is None else context.get_start_method()
    if method == "fork":
        return Fork
    if method == "spawn":
        return functools.partial(_strictly, Spawn)
    if method not in (None, "forkserver"):
        raise ValueError(
            f"multiprocessing_context {context!r} starts processes by {method!r}; workers can be started by "
            "'fork', 'forkserver' and 'spawn'"
        )
    if method is not None:
        return functools.partial(_strictly, FromForkServer)
    return functools.partial(_as_it_goes, loader._forks)


def start_early(loader: DataLoader[Any]) -> None:
    """Starts the fork server, if the loader will need it, and has it import what the dataset's class needs.

    A class that derives from torch's ``Dataset`` needs torch, which takes most of a second to import; the
    first epoch would wait for it otherwise. An error here shows again when the first epoch begins. In a fork
    server or a worker, nothing is started: each may import the module that makes the loader, and would start
    the next.
    """
    context = loader.multiprocessing_context
    if lifeline.is_held():
        return
    if loader.num_workers == 0 or (context is not None and context.get_start_method() != "forkserver"):
        return
    with processes.interrupts_deferred(), contextlib.suppress(OSError, MpwdsError):
        os.getcwd()  # where that has been removed, importing torch ends the process
        forkserver.start([cls.__module__ for cls in type(loader.dataset).__mro__])


class Forks:
    """Whether a loader's workers must be forks of this process: known after the first try.

    Attributes:
        because: What cannot be pickled, or unpickled; ``None`` while everything could.
        might_help: There has been no worker yet that could, or could not, unpickle what it needs.
    """

    because: str | None = None
    might_help = True


def may_fork(loader: DataLoader[Any], error: BaseException) -> bool:
    """Whether the loader's next workers are forks of this process, for others cannot unpickle what they need.

    If so, a warning says it. Forks may not be wanted, or not be possible, or meet the same error.

    Args:
        loader: The loader.
        error: What a worker that is no fork raised.
    """
    might_help = isinstance(error, _UNLIKE_THIS_PROCESS)
    if not might_help or loader.multiprocessing_context is not None or _cuda_is_initialized():
        return False
    loader._forks.because = f"the workers cannot unpickle what they need ({type(error).__name__}: {error})"
    _warn_of_fork(loader._forks.because, "change it so that another process can unpickle it")
    return True


def _as_it_goes(forks: Forks, setup: WorkerSetup) -> Launcher:
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
            "open files, locks and connections where samples are fetched, iterate "
            "the loader before CUDA is used, or, if the workers leave CUDA alone, pass "
            "multiprocessing_context='fork'"
        )
    return Fork(setup)


def _strictly(make: MakeLauncher, setup: WorkerSetup) -> Launcher:
    try:
        return make(setup)
    except CannotPickle as error:
        raise TypeError(
            f"{error.what}, which cannot be pickled for the workers ({error.__cause__}): open files, locks "
            "and connections where samples are fetched, or pass multiprocessing_context='fork'"
        ) from error.__cause__


_OPEN_LATER = "open files, locks and connections where samples are fetched"
_ITERATE_LATER = "iterate the loader in a function that is called when the import is over"


def _warn_of_fork(because: str, instead: str) -> None:
    warn(
        f"{because}, so the workers are forks of this process, with all it has in memory: {instead}, or pass "
        "multiprocessing_context='fork' to say that this is meant"
    )


def _cuda_is_initialized() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())
