"""The start methods: a fresh interpreter, a fork of the trainer, or a fork of the fork server."""

from __future__ import annotations

import io
from collections.abc import Callable

from mpwds.loader.processes import processes
from mpwds.loader.processes.processes import WorkerEnds, WorkerProcess
from mpwds.loader.processes.setup import PickledSetup, WorkerSetup


class Launcher:
    """Starts the workers of one loader, which serve at their ends. Ctrl-C may interrupt making one."""

    def launch(self, index: int, ends: WorkerEnds) -> WorkerProcess:
        raise NotImplementedError

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

    def __init__(self, setup: WorkerSetup) -> None:
        from mpwds.loader.processes import forkserver

        super().__init__(setup)
        self._ready = forkserver.ready
        self._server = forkserver.ready(self._pickled.modules)

    def launch(self, index: int, ends: WorkerEnds) -> WorkerProcess:
        if self._server.is_gone:  # a worker is started again long after it died
            self._server = self._ready(self._pickled.modules)
        return self._server.fork(index, self._setup(), ends)

    def close(self) -> None:
        del self._server
        super().close()


LAUNCHERS: dict[str, Callable[[WorkerSetup], Launcher]] = {
    "spawn": Spawn,
    "fork": Fork,
    "forkserver": FromForkServer,
}
