"""A fresh interpreter that forks the workers of all DataLoaders of this process, quickly."""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import os
import select
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import msgpack

from mpwds.errors import MpwdsError
from mpwds.loader import forks, lifeline, processes, surroundings, worker
from mpwds.loader import setup as worker_setup
from mpwds.loader.forking_process import ForkingProcess, Grandchild
from mpwds.loader.processes import WorkerEnds, WorkerProcess
from mpwds.loader.setup import Pickled, WorkerSetup

_IMPORT = "import"
_FORK = "fork"
_REAP = "reap"
_REQUEST_NBYTES = 200 << 10
_MOST_MODULES = 1000
_OWN_STREAMS = (1, 2)
_MOST_DESCRIPTORS = 1 + len(WorkerEnds._fields) + len(_OWN_STREAMS)


class Nursery:
    """Forks workers from a process that has imported what they need, and nothing else: no thread, no CUDA.

    A DataLoader whose workers do not persist starts new ones for each epoch. Fresh interpreters would import
    torch each time, which takes a second or more. These workers unpickle the dataset themselves, as fresh
    interpreters do, and have the variables, working directory and standard output that this process has.

    One nursery serves the process (:meth:`shared`) and lives as long as somebody holds it. It may be used by
    several threads.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._entrance = threading.RLock()  # a finalizer may reap a worker in the middle of another request
        self._numbers = itertools.count()
        self._replies: dict[int, int | str] = {}
        self._forking: ForkingProcess | None = None
        self._ours = contextlib.ExitStack()
        self._finalizer = weakref.finalize(self, self._ours.close)

    @staticmethod
    def shared() -> Nursery:
        """The nursery of this process; a new one if there is none, or its process is gone."""
        global _shared
        nursery = _shared() if _shared is not None else None
        if nursery is None or nursery._owner != os.getpid() or nursery.is_gone:
            nursery = Nursery()
            _shared = weakref.ref(nursery)
        return nursery

    @property
    def is_gone(self) -> bool:
        """Whether its process was started and has ended."""
        with self._entrance:
            return self._forking is not None and self._forking.process.wait(0)

    def open(self, modules: list[str] | None = None) -> None:
        """Starts its process, unless it runs.

        Args:
            modules: What it then imports by itself, while this process goes on.
        """
        with self._entrance:
            if self._forking is None:
                processes.fill_standard_descriptors()
                self._forking = ForkingProcess("mpwds.loader.nursery:serve")
                self._ours.callback(self._forking.close)
                if modules:
                    with _import_request(modules) as (request, descriptors):
                        self._send(self._forking, request, descriptors)

    def prepare(self, modules: list[str]) -> None:
        """Has it import modules, and waits until it has. Those that cannot be imported are left out."""
        with _import_request(modules) as (request, descriptors):
            self._ask(request, descriptors)

    def fork(self, index: int, setup: int, ends: WorkerEnds) -> WorkerProcess:
        """Forks worker ``index``, which reads the stored setup and serves at ``ends``."""
        streams = [stream if _is_open(stream) else ends.status for stream in _OWN_STREAMS]
        shares = [stream != ends.status for stream in streams]
        return Grandchild(self._ask([_FORK, index, shares], [setup, *ends, *streams]), self.exitcode)

    def exitcode(self, pid: int) -> int:
        """Reaps an ended worker.

        Raises:
            MpwdsError: The nursery is gone.
            OSError: The same.
        """
        return self._ask([_REAP, pid], [])

    def _ask(self, request: list[Any], descriptors: list[int]) -> int:
        forking = self._forking
        if forking is None:
            raise MpwdsError("the process that forks the workers was not started")
        with self._entrance:
            number = self._send(forking, request, descriptors)
            while number not in self._replies:
                data = forking.receive(_REQUEST_NBYTES, lambda: number in self._replies)
                if data:
                    answered, result = msgpack.unpackb(data)
                    self._replies[answered] = result
            result = self._replies.pop(number)
        if isinstance(result, str):
            raise MpwdsError(f"the process that forks the workers failed: {result}")
        return result

    def _send(self, forking: ForkingProcess, request: list[Any], descriptors: list[int]) -> int:
        number = next(self._numbers)
        data = msgpack.packb([number, *request], unicode_errors="surrogateescape")
        socket.send_fds(forking.socket, [data], descriptors)
        return number


@contextlib.contextmanager
def _import_request(modules: list[str]) -> Iterator[tuple[list[Any], list[int]]]:
    """The request and its descriptors: modules find around them what they would find in this process now."""
    nothing_but_surroundings = worker_setup.store(Pickled([], []))
    try:
        yield [_IMPORT, modules[:_MOST_MODULES]], [nothing_but_surroundings]
    finally:
        os.close(nothing_but_surroundings)


_shared: weakref.ref[Nursery] | None = None


class FromNursery:
    """Launcher of workers that the nursery forks.

    Args:
        nursery: The nursery.
        setup: What the workers get.

    Raises:
        CannotPickle: The setup holds something that cannot be pickled.
    """

    def __init__(self, nursery: Nursery, setup: WorkerSetup) -> None:
        self._nursery = nursery
        self._pickled = worker_setup.pickled(setup)
        self._modules = self._pickled.modules
        self._setup = -1

    def open(self) -> None:
        self._setup = worker_setup.store(self._pickled)
        self._nursery.open()

    def wait(self) -> None:
        self._nursery.prepare(self._modules)

    def launch(self, index: int, ends: WorkerEnds) -> WorkerProcess:
        return self._nursery.fork(index, self._setup, ends)

    def close(self) -> None:
        if self._setup >= 0:
            os.close(self._setup)


def serve(connection: int, held: int) -> None:
    """Entry of the nursery's process: does what it is asked until its trainer is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a trainer that ignores it would have the workers reaped
    lifeline.kill_at_end_of(held)
    for descriptor in (connection, held):
        os.set_inheritable(descriptor, False)
    gc.disable()  # it would look through what is imported again and again: an eighth of the time that takes
    trainer = os.getppid()
    # Workers must not hold this end: the trainer would wait for ever for the reply of a nursery that is gone.
    forks.guard(connection)
    server = socket.socket(fileno=connection)
    waiting = select.poll()
    waiting.register(server, select.POLLIN)
    with server, contextlib.suppress(ConnectionError):  # the end of a trainer, in the middle of a request too
        while os.getppid() == trainer:
            if not waiting.poll(lifeline.PARENT_CHECK_S * 1000):
                continue
            data, descriptors, flags, _ = socket.recv_fds(server, _REQUEST_NBYTES, _MOST_DESCRIPTORS)
            if not data:
                return
            number, kind, *arguments = msgpack.unpackb(data, unicode_errors="surrogateescape")
            try:
                processes.check_none_was_lost(flags)
                result: int | str = _ANSWERS[kind](descriptors, *arguments)
            except Exception as error:
                result = f"{type(error).__name__}: {error}"
            for handed in descriptors:
                os.close(handed)
            server.send(msgpack.packb([number, result]))


def _import(descriptors: list[int], modules: list[str]) -> int:
    surroundings.take_on(worker_setup.read_surroundings(descriptors[0]))
    with _nothing_printed():
        for module in modules:
            if module not in sys.modules:
                # Whatever a module does when it is imported, the worker that needs it will tell.
                with contextlib.suppress(BaseException):
                    importlib.import_module(module)
    # The workers' collectors leave alone what all of them share: no pause of 80 ms, no private copies.
    gc.freeze()
    return 0


@contextlib.contextmanager
def _nothing_printed() -> Iterator[None]:
    """What modules print when they are imported, this process' trainer has printed, or a worker will."""
    kept = [os.dup(stream) for stream in _OWN_STREAMS]
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in _OWN_STREAMS:
            os.dup2(nothing, stream)
        yield
    finally:
        for buffer in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                buffer.flush()
        for stream, copy in zip(_OWN_STREAMS, kept, strict=True):
            os.dup2(copy, stream)
            os.close(copy)
        os.close(nothing)


def _fork(descriptors: list[int], index: int, shares: list[bool]) -> int:
    setup = descriptors[0]
    ends = WorkerEnds(*descriptors[1 : -len(_OWN_STREAMS)])
    streams = descriptors[-len(_OWN_STREAMS) :]

    def read() -> WorkerSetup:
        try:
            return worker_setup.read(setup)
        finally:
            os.close(setup)

    def live() -> None:
        gc.enable()
        for own, stream, share in zip(_OWN_STREAMS, streams, shares, strict=True):
            if share:
                os.dup2(stream, own)
            os.close(stream)
        for descriptor in (setup, *ends):
            os.set_inheritable(descriptor, False)
        worker.serve(index, read, ends)

    return processes.fork(live)


def _reap(descriptors: list[int], pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


_ANSWERS: dict[str, Any] = {_IMPORT: _import, _FORK: _fork, _REAP: _reap}


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
