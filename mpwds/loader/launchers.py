"""The start methods: a fresh interpreter, a fork of the trainer, or a fork of a server made for that."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import select
import signal
import socket
import struct
from collections.abc import Callable
from typing import Protocol

from mpwds.loader import forks, lifeline, processes, worker
from mpwds.loader import setup as worker_setup
from mpwds.loader.forking_process import ForkingProcess, Grandchild
from mpwds.loader.processes import WorkerEnds, WorkerProcess
from mpwds.loader.setup import WorkerSetup

_REQUEST = struct.Struct("<ci")
_REPLY = struct.Struct("<i")
_READY = 0
_FORK = b"f"
_WAIT = b"w"


class Launcher(Protocol):
    """Starts the workers of one loader. Making one may take long, as may ``wait``; Ctrl-C ends both."""

    def open(self) -> None:
        """Takes the resources it needs, which :meth:`close` gives back."""
        ...

    def wait(self) -> None:
        """Waits until workers can be launched at once."""
        ...

    def launch(self, index: int, ends: WorkerEnds) -> WorkerProcess:
        """Starts worker ``index``, which serves at ``ends``."""
        ...

    def close(self) -> None:
        """Ends what this keeps, after the last worker was reaped."""
        ...


class Spawn:
    """Fresh interpreters: they inherit nothing, so threads and CUDA in the trainer do not matter.

    Raises:
        TypeError: The dataset cannot be pickled.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self._pickled = worker_setup.pickled(setup)
        self._setup = -1

    def open(self) -> None:
        self._setup = worker_setup.store(self._pickled)

    def wait(self) -> None:
        pass

    def launch(self, index: int, ends: WorkerEnds) -> WorkerProcess:
        return processes.spawn("mpwds.loader.worker:main", [self._setup, *ends], [index, self._setup, *ends])

    def close(self) -> None:
        if self._setup >= 0:
            os.close(self._setup)


class Fork:
    """Forks of the trainer: the dataset needs no pickling.

    Threads and CUDA do not survive it, numeric libraries keep the trainer's number of threads, and objects
    whose class was defined inside a function come back as objects of a copy of that class.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = setup

    def open(self) -> None:
        pass

    def wait(self) -> None:
        pass

    def launch(self, index: int, ends: WorkerEnds) -> WorkerProcess:
        return WorkerProcess(processes.fork(lambda: worker.serve(index, lambda: self._setup, ends)))

    def close(self) -> None:
        pass


class ForkServer:
    """Forks of one fresh interpreter that has imported and unpickled the dataset: clean, and started fast.

    Raises:
        TypeError: The dataset cannot be pickled.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self._pickled = worker_setup.pickled(setup)
        self._ours = contextlib.ExitStack()

    def open(self) -> None:
        setup = worker_setup.store(self._pickled)
        try:
            self._forking = ForkingProcess("mpwds.loader.launchers:serve_forks", setup)
        finally:
            os.close(setup)
        self._ours.callback(self._forking.close)

    def wait(self) -> None:
        self._reply()

    def launch(self, index: int, ends: WorkerEnds) -> WorkerProcess:
        socket.send_fds(self._forking.socket, [_REQUEST.pack(_FORK, index)], list(ends))
        pid = self._reply()
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid), "the process that forks the workers")
        return Grandchild(pid, self.exitcode)

    def exitcode(self, pid: int) -> int:
        """Reaps an ended worker.

        Raises:
            MpwdsError: The server is gone.
            OSError: The same.
        """
        self._forking.socket.send(_REQUEST.pack(_WAIT, pid))
        return self._reply()

    def close(self) -> None:
        self._ours.close()

    def _reply(self) -> int:
        return int(_REPLY.unpack(self._forking.receive(_REPLY.size))[0])


def serve_forks(setup: int, connection: int, held: int) -> None:
    """Entry of the fork server: forks workers and reaps them when asked, until its trainer is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a trainer that ignores it would have the workers reaped
    lifeline.kill_at_end_of(held)
    for descriptor in (setup, connection, held):
        os.set_inheritable(descriptor, False)
    read_setup = _read_once(setup)
    trainer = os.getppid()
    # Workers must not hold this end: the trainer would wait for ever for the reply of a server that is gone.
    forks.guard(connection)
    server = socket.socket(fileno=connection)
    waiting = select.poll()
    waiting.register(server, select.POLLIN)
    with server, contextlib.suppress(ConnectionError):  # the end of a trainer, in the middle of a request too
        server.send(_REPLY.pack(_READY))
        while os.getppid() == trainer:
            if not waiting.poll(lifeline.PARENT_CHECK_S * 1000):
                continue
            request, descriptors, flags, _ = socket.recv_fds(server, _REQUEST.size, len(WorkerEnds._fields))
            if not request:
                return
            kind, number = _REQUEST.unpack(request)
            if kind == _WAIT:
                _, status = os.waitpid(number, 0)
                server.send(_REPLY.pack(os.waitstatus_to_exitcode(status)))
                continue
            try:
                processes.check_none_was_lost(flags)
                serve = functools.partial(worker.serve, number, read_setup, WorkerEnds(*descriptors))
                pid = processes.fork(serve)
            except OSError as error:
                pid = -(error.errno or errno.EIO)
            for descriptor in descriptors:
                os.close(descriptor)
            server.send(_REPLY.pack(pid))


def _read_once(descriptor: int) -> Callable[[], WorkerSetup]:
    """Reads the setup now, for all workers; an error is kept, for each of them to report."""
    try:
        setup = worker_setup.read(descriptor)
    except Exception as error:
        failure = error

        def fail() -> WorkerSetup:
            raise failure

        return fail
    return lambda: setup


LAUNCHERS: dict[str, Callable[[WorkerSetup], Launcher]] = {
    "spawn": Spawn,
    "fork": Fork,
    "forkserver": ForkServer,
}
