"""The fork server: a fresh interpreter that imports the modules of datasets and forks workers.

A forked worker starts in 40 ms; a fresh interpreter needs a second or more to import torch. Nothing of the
training process is forked: no thread, no CUDA. Workers unpickle their dataset themselves, and have the
environment variables, working directory and standard output of the training process.

One server serves all loaders of a process. It starts with the first that needs it, and ends with the process,
or after ``IDLE_S`` without a worker or a request: an idle notebook gets its memory back.

This is the training process' side; ``forkserver_process`` is the other, and describes the messages.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import socket
import threading
import weakref
from pathlib import Path
from typing import Any

import msgpack

from mpwds.errors import MpwdsError
from mpwds.interrupts import interrupts_deferred
from mpwds.loader.processes import environment, processes
from mpwds.loader.processes.processes import WorkerEnds, WorkerProcess
from mpwds.sharedmem import segment

IDLE_S = 60
"""Starting a server takes up to 0.7 s, with torch: this much idle time makes that 1.2 % at the most."""

STOPPED_S = 5.0
"""How long a server may be stopped (SIGSTOP) while it is waited for, before it is killed."""

_LOOK_EVERY_S = 0.25
_END_GRACE_S = 0.2
_REPLY_NBYTES = 8 << 10
_GONE = "the process that forks the workers is gone: killed, or it said why"


class ServerGone(MpwdsError):
    """The fork server has ended, or was killed because it was stopped."""


class ForkServer:
    """The training process' side of a server, which starts at once. Several threads may use it.

    The server ends when this object is collected; its workers refer to it.
    """

    is_spoiled = False
    """True if it has imported a module that forks should not share."""

    def __init__(self) -> None:
        processes.fill_standard_descriptors()
        self._code = environment.LoadedCode()
        self._inherited = environment.inherited()
        self._imported: set[str] = set()
        self._importing: dict[int, list[str]] = {}  # by the number of the request
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        with contextlib.ExitStack() as its_ends, contextlib.ExitStack() as ours:
            self._socket, connection = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            its_ends.callback(connection.close)
            ours.callback(self._socket.close)
            held, lifeline_end = os.pipe()
            its_ends.callback(os.close, held)
            ours.callback(os.close, lifeline_end)
            for end in (self._socket.fileno(), lifeline_end):
                processes.close_on_fork(end)
                ours.callback(processes.keep_on_fork, end)
            descriptors = [connection.fileno(), held]
            self._process = processes.spawn(
                "mpwds.loader.launching.forkserver_process:serve", descriptors, [*descriptors, IDLE_S]
            )
            weakref.finalize(self, _end, os.getpid(), ours.pop_all(), self._process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_gone(self) -> bool:
        return processes.has_input(self._process.fileno())

    @property
    def is_outdated(self) -> bool:
        """True if it has ended, may have imported code that this process has loaded again since
        (``importlib.reload``), or has limits, a user or the like that this process has changed since.
        """
        return self.is_gone or self._code.has_changed() or self._inherited != environment.inherited()

    def has_imported(self, modules: list[str]) -> bool:
        """True if it has imported modules, as far as is known without waiting."""
        if self._lock.acquire(blocking=False):
            try:
                with contextlib.suppress(ServerGone):
                    while self._importing and processes.has_input(self._socket.fileno()):
                        self._receive()
            finally:
                self._lock.release()
        return self._imported.issuperset(modules)

    def begin_import(self, modules: list[str]) -> None:
        """Begins to import modules, unless it has begun to."""
        with self._lock:
            if not self._imported.union(*self._importing.values()).issuperset(modules):
                number = self._send(["import", modules, environment.current()], [])
                self._importing[number] = modules

    def prepare(self, modules: list[str]) -> int:
        """Waits until the server has imported modules; it skips those that cannot be imported.

        Returns:
            The number, from 1, of the first module that forks should not share, -1 if an earlier call had
            that module, or 0.
        """
        culprit = self._ask(["import", modules, environment.current()], [])
        self._imported.update(modules)
        self.is_spoiled = culprit != 0
        return culprit

    def fork(self, index: int, setup: int, ends: WorkerEnds) -> WorkerProcess:
        """Forks worker ``index``, which reads the stored setup and serves at ``ends``."""
        processes.fill_standard_descriptors()
        status, its_status = os.pipe()
        try:
            pid = self._ask(["fork", index], [setup, *ends, *processes.OUTPUT_STREAMS, its_status])
        except BaseException:
            os.close(status)
            raise
        finally:
            os.close(its_status)
        return _ForkedWorker(pid, self, status)

    def wait_for(self, descriptor: int) -> None:
        """Waits until there is something to read from a descriptor whose other end the server has.

        Imports may take long, but a server that stays stopped for ``STOPPED_S`` is killed. When a job is
        stopped and continued, its processes wake one by one, so what counts is how often the server was found
        stopped, not how much time has passed.
        """
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        patience_s = STOPPED_S
        while not poller.poll(_LOOK_EVERY_S * 1000):
            patience_s = patience_s - _LOOK_EVERY_S if _is_stopped(self.pid) else STOPPED_S
            if patience_s <= 0:
                self._process.kill()
                raise ServerGone(
                    f"the process that forks the workers (pid {self.pid}) was stopped (by SIGSTOP or the "
                    f"like), and gave no answer for {STOPPED_S:g} s: it was killed, which ends its workers "
                    "too. The next epoch starts a new one"
                )

    def _ask(self, request: list[Any], descriptors: list[int]) -> int:
        answered = -1
        with self._lock:
            number = self._send(request, descriptors)
            while answered != number:  # there may be replies that nobody has waited for
                answered, result, error_number, message = self._receive()
        if error_number:
            raise OSError(error_number, os.strerror(error_number), "the process that forks the workers")
        if message:
            raise MpwdsError(f"the process that forks the workers failed: {message}")
        return int(result)

    def _send(self, request: list[Any], descriptors: list[int]) -> int:
        number = next(self._numbers)
        body = msgpack.packb(request, unicode_errors="surrogateescape")
        with interrupts_deferred():
            content = segment.create(len(body))
            try:
                os.pwrite(content, body, 0)
                processes.send_fds(self._socket, msgpack.packb(number), [content, *descriptors])
            except ConnectionError:
                raise ServerGone(_GONE) from None
            finally:
                os.close(content)
        return number

    def _receive(self) -> tuple[int, int, int, str]:
        self.wait_for(self._socket.fileno())
        try:
            reply = self._socket.recv(_REPLY_NBYTES)
        except ConnectionError:
            reply = b""
        if not reply:
            raise ServerGone(_GONE)
        number, result, error_number, message = msgpack.unpackb(reply)
        self._imported.update(self._importing.pop(number, ()))
        return number, result, error_number, message


class _ForkedWorker(WorkerProcess):
    """A worker that the server has forked, and reaps; its exit status comes by the pipe ``status``."""

    def __init__(self, pid: int, server: ForkServer, status: int) -> None:
        self._server = server
        self._status = status
        super().__init__(pid)
        if self._ended:  # the server had reaped it before it could be watched
            self.exitcode = self._reap()

    def _reap(self) -> int:
        try:
            self._server.wait_for(self._status)
            if text := os.read(self._status, 16):
                return int(text)
            self.hint = self.hint or "the process that forks the workers is gone, and they end with it"
        except ServerGone as error:
            self.hint = str(error)
        finally:
            os.close(self._status)
            del self._server  # it may end now, even if an exception's traceback keeps this worker
        return -signal.SIGKILL


def start(modules: list[str]) -> None:
    """Starts this process' server, if none runs, and has it import modules, without waiting for it."""
    server, is_new = _running()
    if is_new:
        server.begin_import(modules)


def has_imported(modules: list[str]) -> bool:
    """True if a server runs that has imported modules; otherwise it begins to, without waiting for it."""
    server, _ = _running()
    if server.has_imported(modules):
        return True
    server.begin_import(modules)
    return False


def ready(modules: list[str]) -> ForkServer:
    """This process' server, after it has imported modules. Ctrl-C ends the wait.

    Replaces a server that has ended or is outdated; that one stays until its last worker ends. Raises
    ``OSError`` or ``ServerGone``.
    """
    return _prepared(modules)[0]


def ready_and_safe(modules: list[str]) -> ForkServer | None:
    """The same, provided that its forks are as good as fresh interpreters. Otherwise, returns ``None``.

    Modules that start threads, open files or make random generators when they are imported spoil a server.
    """
    while not is_unsafe(modules):
        server, culprit = _prepared(modules)
        if culprit == 0:
            return server
        let_go()  # the next loader's server is without these modules
        if culprit > 0:
            _unsafe.add(modules[culprit - 1])
    return None


def is_unsafe(modules: list[str]) -> bool:
    """True if it is known that one of the modules spoils a server."""
    return not _unsafe.isdisjoint(modules)


def _prepared(modules: list[str]) -> tuple[ForkServer, int]:
    server, is_new = _running()
    if not is_new:
        with contextlib.suppress(ServerGone):
            if not server.is_outdated:
                return server, server.prepare(modules)
        let_go()
        server, _ = _running()
    return server, server.prepare(modules)


def let_go() -> None:
    """Ends this process' server as soon as its last worker has ended; the next loader starts another."""
    global _current
    _current = None


def _running() -> tuple[ForkServer, bool]:
    """This process' server, and whether it was just started."""
    global _current
    with _starting, interrupts_deferred():
        server = _current
        if server is not None and not server.is_gone:
            return server, False
        _current = server = ForkServer()
        return server, True


_unsafe: set[str] = set()  # modules that loaders import in fresh interpreters
_current: ForkServer | None = None
_starting = threading.Lock()


def _forget_in_child() -> None:
    """A fork of this process starts a server of its own."""
    global _starting
    _starting = threading.Lock()
    let_go()


os.register_at_fork(after_in_child=_forget_in_child)


def _end(owner: int, ends: contextlib.ExitStack, process: WorkerProcess) -> None:
    ends.close()
    if os.getpid() == owner:
        processes.end_all([process], _END_GRACE_S)


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False
