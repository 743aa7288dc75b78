"""The fork server's process. It answers the requests of its trainer, one at a time.

*Messages* are datagrams. A request carries its number and descriptors: first of a segment that holds the
request in msgpack, which may be longer than a socket holds, then those that a worker gets. Its reply is a
msgpack list: the request's number, a process id, an error's number and an error's message. Exit statuses come
by a pipe for each worker, so a finalizer that ends workers needs no socket on which another call may wait.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import random
import select
import signal
import socket
import sys
import time
from types import ModuleType
from typing import Any

import msgpack

from mpwds.loader.processes import environment, processes
from mpwds.loader.worker import worker

_MOST_DESCRIPTORS = 2 + len(processes.WorkerEnds._fields) + len(processes.OUTPUT_STREAMS) + 1
"""Of the request, the setup, a worker's ends and streams, and the pipe for its status."""

_LONGEST_MESSAGE = 1000
_NUMBER_NBYTES = 16


def serve(connection: int, held: int, idle_s: int) -> None:
    """Entry of the server's process, with its ends of the socket pair and of the lifeline."""
    processes.leave_signals_to_trainer()
    processes.kill_at_end_of(held)
    os.set_inheritable(held, False)
    gc.disable()  # collections would take an eighth of the time of an import
    # If workers held this end, the trainer would wait for ever for the reply of a server that is gone.
    processes.close_on_fork(connection)
    # What modules print when they are imported, the trainer has printed, or a worker will.
    errors = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in processes.OUTPUT_STREAMS:
        os.dup2(nothing, stream)
    os.close(nothing)
    try:
        _Server(socket.socket(fileno=connection)).run(idle_s)
    except ConnectionError:  # the end of a trainer that still waited for a reply
        pass
    except BaseException:
        os.dup2(errors, 2)
        raise
    os._exit(0)  # exit handlers of imported modules run in the trainer, not here


class _Server:
    def __init__(self, connection: socket.socket) -> None:
        connection.set_inheritable(False)
        self._connection = connection
        self._statuses: dict[int, int] = {}
        self._culprit = ""

    def run(self, idle_s: float) -> None:
        """Answers requests until the trainer is gone, or there was nothing to do for ``idle_s``."""
        self._handle_signals()
        trainer = os.getppid()
        waiting = select.poll()
        waiting.register(self._connection, select.POLLIN)
        busy_until = time.monotonic()
        while os.getppid() == trainer and time.monotonic() - busy_until < idle_s:
            if waiting.poll(processes.PARENT_CHECK_S * 1000):
                self._answer()
                busy_until = time.monotonic()
            elif self._statuses:
                busy_until = time.monotonic()

    def _handle_signals(self) -> None:
        """Reaps workers on SIGCHLD and leaves other signals alone, whatever modules or the trainer set."""
        processes.leave_signals_to_trainer()
        signal.signal(signal.SIGCHLD, lambda *_: self._reap())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        self._reap()  # workers that have ended before

    def _answer(self) -> None:
        number, descriptors, lost = processes.receive_fds(self._connection, _NUMBER_NBYTES, _MOST_DESCRIPTORS)
        if not number:
            raise ConnectionError("the trainer is gone")
        result, error_number, message = 0, 0, ""
        try:
            if lost:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            result = self._done(descriptors)
        except OSError as error:
            error_number = error.errno or errno.EIO
        except Exception as error:
            message = f"{type(error).__name__}: {error}"[:_LONGEST_MESSAGE]
        for descriptor in descriptors:
            os.close(descriptor)
        self._connection.send(msgpack.packb([msgpack.unpackb(number), result, error_number, message]))

    def _done(self, descriptors: list[int]) -> int:
        """Does what is requested; closes none of the descriptors, and removes those that it keeps."""
        nbytes = os.fstat(descriptors[0]).st_size
        kind, *arguments = msgpack.unpackb(
            os.pread(descriptors[0], nbytes, 0), unicode_errors="surrogateescape"
        )
        return self._import(*arguments) if kind == "import" else self._fork(descriptors, *arguments)

    def _import(self, modules: list[str], present: list[Any]) -> int:
        """Imports modules, and returns what ``ForkServer.prepare`` does."""
        environment.apply(present)
        descriptors = _descriptors()
        failed: list[str] = []
        for module in modules:
            before = set(sys.modules)
            if module not in before:
                try:
                    importlib.import_module(module)
                except BaseException:  # a worker that needs the module reports the error
                    if set(sys.modules) - before:
                        failed.append(module)
            if not self._culprit and _is_unsafe_to_fork(descriptors, set(sys.modules) - before):
                self._culprit = module
        if not self._culprit:  # a fork would repeat only a part of such an import, and may fail otherwise
            self._culprit = next((module for module in failed if module not in sys.modules), "")
        self._handle_signals()
        # The workers' collectors skip what all of them share: no pause of 80 ms, no private copies.
        gc.freeze()
        if not self._culprit:
            return 0
        return modules.index(self._culprit) + 1 if self._culprit in modules else -1

    def _fork(self, descriptors: list[int], index: int) -> int:
        request, setup, *ends, output, errors, status = descriptors

        def live() -> None:
            os.close(request)
            for own, stream in zip(processes.OUTPUT_STREAMS, (output, errors), strict=True):
                os.dup2(stream, own)
                os.close(stream)
            try:
                worker.main(index, setup, *ends)
            finally:
                if (multiprocessing := sys.modules.get("multiprocessing.util")) is not None:
                    multiprocessing._exit_function()  # ends its processes, as at an interpreter's exit

        processes.close_on_fork(status)  # workers must not hold it: its end tells that this process is gone
        try:
            pid = processes.fork(live)
        except BaseException:
            processes.keep_on_fork(status)
            raise
        descriptors.remove(status)
        self._statuses[pid] = status
        self._reap()  # it may have ended already
        return pid

    def _reap(self) -> None:
        """Reaps workers and reports their exit statuses. A signal may call this while it runs."""
        for pid in list(self._statuses):
            try:
                ended, code = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue
            if ended:
                status = self._statuses.pop(pid)
                with contextlib.suppress(OSError):  # the trainer has closed its end
                    os.write(status, str(os.waitstatus_to_exitcode(code)).encode())
                processes.keep_on_fork(status)
                os.close(status)


def _descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def _is_unsafe_to_fork(descriptors: set[str], imported: set[str]) -> bool:
    """True if forks of this process would differ from fresh interpreters that import the same modules.

    Threads do not survive a fork, and may hold locks. Forks share the positions of files that a module has
    opened, and would draw the same numbers from a random generator that a module of the user's has made.
    """
    if len(os.listdir("/proc/self/task")) > 1 or len(_descriptors() - descriptors) > 0:
        return True
    generators: list[type] = [random.Random]
    if (numpy_random := sys.modules.get("numpy.random")) is not None:  # an import would slow workers
        generators += [numpy_random.Generator, numpy_random.RandomState]
    return any(
        type(value) in generators
        for module in map(sys.modules.get, imported)
        if type(module) is ModuleType and not environment.is_installed(module)
        for value in list(vars(module).values())
    )
