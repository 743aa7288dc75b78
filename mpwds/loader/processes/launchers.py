"""The start methods: a fresh interpreter, a fork of the trainer, or a fork of the fork server."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from mpwds.loader.processes import processes
from mpwds.loader.processes import setup as worker_setup
from mpwds.loader.processes.processes import WorkerEnds, WorkerProcess
from mpwds.loader.processes.setup import WorkerSetup

if TYPE_CHECKING:
    from mpwds.loader.processes.forkserver import ForkServer


class Launcher:
    """Starts the workers of one loader. Making one and ``wait`` may take long; Ctrl-C may interrupt them."""

    def open(self) -> None:
        """Takes the resources it needs, which :meth:`close` gives back."""

    def wait(self) -> None:
        """Waits until workers can be launched at once."""

    def launch(self, index: int, ends: WorkerEnds) -> WorkerProcess:
        """Starts worker ``index``, which serves at ``ends``."""
        raise NotImplementedError

    def close(self) -> None:
        """Gives back its resources, after the last worker was reaped."""


class Fork(Launcher):
    """Forks of the trainer: the dataset needs no pickling.

    Threads and CUDA do not survive a fork, numeric libraries keep the trainer's number of threads, and
    objects whose class was defined inside a function come back as objects of a copy of that class.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        from mpwds.loader.worker import worker

        setup.serving_class()  # imported once, here, and not by each worker
        self._setup = setup
        self._serve = worker.serve

    def launch(self, index: int, ends: WorkerEnds) -> WorkerProcess:
        return WorkerProcess(processes.fork(lambda: self._serve(index, lambda: self._setup, ends)))


class Spawn(Launcher):
    """Fresh interpreters: they inherit nothing, so threads and CUDA in the trainer do not matter.

    Raises:
        CannotPickle: A part of the setup cannot be pickled.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self._pickled = worker_setup.pickled(setup)
        self._setup = -1

    def open(self) -> None:
        self._setup = worker_setup.store(self._pickled)

    def launch(self, index: int, ends: WorkerEnds) -> WorkerProcess:
        return processes.spawn(
            "mpwds.loader.worker.worker:main", [self._setup, *ends], [index, self._setup, *ends]
        )

    def close(self) -> None:
        if self._setup >= 0:
            os.close(self._setup)


class FromForkServer(Spawn):
    """Forks of this process' fork server: clean like fresh interpreters, and started fast."""

    _server: ForkServer | None = None

    def wait(self) -> None:
        self._server = self._ready()

    def launch(self, index: int, ends: WorkerEnds) -> WorkerProcess:
        server = self._server
        if server is None or server.is_gone:  # a worker is started again long after it died
            self._server = server = self._ready()
        return server.fork(index, self._setup, ends)

    def close(self) -> None:
        self._server = None
        super().close()

    def _ready(self) -> ForkServer:
        from mpwds.loader.processes import forkserver

        return forkserver.ready(self._pickled.modules)


LAUNCHERS: dict[str, Callable[[WorkerSetup], Launcher]] = {
    "spawn": Spawn,
    "fork": Fork,
    "forkserver": FromForkServer,
}
