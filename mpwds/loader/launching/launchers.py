"""The start methods: a fresh interpreter, a fork of the trainer, or a fork of the fork server."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

from mpwds.errors import MpwdsError
from mpwds.loader.launching import forkserver
from mpwds.loader.launching.forkserver import ForkServer
from mpwds.loader.processes import processes
from mpwds.loader.processes.processes import WorkerEnds, WorkerProcess
from mpwds.loader.processes.setup import OPEN_LATER, CannotPickle, PickledSetup, StillImported, WorkerSetup
from mpwds.warn import warn


class Launcher:
    """Starts the workers of one loader, which serve at their ends. Ctrl-C may interrupt making one.

    This one is for loaders whose workers are no processes of this machine.
    """

    def prepare(self, wait: bool) -> bool:
        """Gets ready to launch; without ``wait``, False if that would take long. Ctrl-C may interrupt it."""
        return True

    def launch(self, index: int, ends: WorkerEnds) -> WorkerProcess:
        raise MpwdsError("this loader starts no processes on this machine")

    def close(self) -> None:
        """Gives back its resources, after the last worker was reaped."""


class Fork(Launcher):
    """Forks of the trainer: the dataset needs no pickling, but threads and CUDA do not survive a fork.

    Objects whose class was defined inside a function come back as objects of a copy of that class.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        from mpwds.loader.worker import worker

        setup.serving_class()  # imported once, here, and not by each worker
        self._setup = setup
        self._serve = worker.serve

    def launch(self, index: int, ends: WorkerEnds) -> WorkerProcess:
        return WorkerProcess(processes.fork(lambda: self._serve(index, lambda: self._setup, ends)))


class Spawn(Launcher):
    """Fresh interpreters: they inherit nothing, so threads and CUDA in the trainer do not matter."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._pickled = PickledSetup(setup)
        self._stored: io.FileIO | None = None

    def launch(self, index: int, ends: WorkerEnds) -> WorkerProcess:
        descriptors = [self._setup(), *ends]
        return processes.spawn("mpwds.loader.worker.worker:main", descriptors, [index, *descriptors])

    def close(self) -> None:
        if self._stored is not None:
            self._stored.close()

    def _setup(self) -> int:
        if self._stored is None:
            self._stored = self._pickled.store()
        return self._stored.fileno()


class FromForkServer(Spawn):
    """Forks of this process' fork server: clean like fresh interpreters, and started fast."""

    _find_server: Callable[[list[str]], ForkServer | None] = staticmethod(forkserver.ready)
    _server: ForkServer | None = None

    def prepare(self, wait: bool) -> bool:
        if not wait and not forkserver.has_imported(self._pickled.modules):
            return False
        self._server = self._find_server(self._pickled.modules)
        return True

    def launch(self, index: int, ends: WorkerEnds) -> WorkerProcess:
        if self._server is None or self._server.is_gone:  # a worker is started again long after it died
            self.prepare(wait=True)
        if self._server is None:
            return super().launch(index, ends)
        return self._server.fork(index, self._setup(), ends)

    def close(self) -> None:
        self._server = None
        super().close()


class ForkServerOrSpawn(FromForkServer):
    """Forks of the fork server where they are as good as fresh interpreters, and otherwise those.

    A worker's own loaders get fresh interpreters: one server for each worker would be no gain.
    """

    _find_server = staticmethod(forkserver.ready_and_safe)

    def prepare(self, wait: bool) -> bool:
        self._server = None
        if processes.holds_lifeline() or forkserver.is_unsafe(self._pickled.modules):
            return True
        try:
            return super().prepare(wait)
        except (OSError, MpwdsError):  # fresh interpreters start, or tell why not
            return True

    def launch(self, index: int, ends: WorkerEnds) -> WorkerProcess:
        if self._server is not None and self._server.is_spoiled:  # by another loader's modules
            self.prepare(wait=True)
        return super().launch(index, ends)


class ForkFallback:
    """Starts workers as a loader prefers, or as forks of this process where that cannot send the dataset.

    ``option`` asks for forks, for messages.
    """

    reason: tuple[str, str] | None = None  # why the next workers must be forks, and what to change
    forked = False  # the last ones were
    unpickled = False  # others have shown that they can unpickle what they need

    def __init__(self, prefers: Callable[[WorkerSetup], Launcher], option: str) -> None:
        self._prefers = prefers
        self._option = option

    def __call__(self, setup: WorkerSetup) -> Launcher:
        self.forked = False
        if self.reason is not None:
            self.require(*self.reason)
        else:
            try:
                return self._prefers(setup)
            except CannotPickle as error:
                self.require(f"{error.what}, which cannot be pickled", OPEN_LATER)
            except StillImported as error:
                later = "iterate the loader in a function that is called after the import"
                self.require(f"the module {error.module!r} is still being imported", later)
                self.reason = None  # the next epoch may begin after the import
        self.forked = True
        return Fork(setup)

    def require(self, because: str, instead: str) -> None:
        """Makes the next workers forks, and warns the first time. A TypeError if CUDA is in use."""
        if cuda_is_initialized():
            raise TypeError(
                f"{because}, so the workers would be forks of this process, but CUDA is in use here, which "
                f"forks cannot use: {instead}, iterate the loader before CUDA is used, or, if the workers "
                f"leave CUDA alone, pass {self._option}"
            )
        if self.reason is None:
            warn(
                f"{because}, so the workers are forks of this process, with all it has in memory: {instead}, "
                f"or pass {self._option} to say that this is meant"
            )
        self.reason = because, instead


def cuda_is_initialized() -> bool:
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and bool(cuda.is_initialized())


LAUNCHERS: dict[str, Callable[[WorkerSetup], Launcher]] = {
    "spawn": Spawn,
    "fork": Fork,
    "forkserver": FromForkServer,
}


def launcher_of(start_method: str | None) -> Callable[[WorkerSetup], Launcher]:
    """The start method of a MultiLoader; without one, whichever is the fastest that is safe."""
    if start_method is None:
        return ForkFallback(ForkServerOrSpawn, "start_method='fork'")
    return LAUNCHERS[start_method]
