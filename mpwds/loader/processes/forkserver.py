"""The fork server: a fresh interpreter that imports the modules of datasets and forks workers.

A forked worker starts in 40 ms, where a fresh interpreter needs a second or more to import torch, and nothing
of the training process is forked: no thread, no CUDA. Workers unpickle their dataset themselves, and have the
environment variables, working directory and standard output of the training process.

One server serves all loaders of a process. It starts with the first loader that needs it. It ends with the
process, or after ``IDLE_S`` without a worker or a request. So a program that makes a loader for each epoch
does not pay for a new server each time, and an idle notebook gets its memory back.

*On the wire.* Requests and replies are a length (32 bits), then msgpack, over a stream socket pair; the
descriptors of a request come with its first byte. Each request has one reply, in order. Exit statuses come
by a pipe for each worker, on which the server writes the status after it has reaped the worker. So a
finalizer that ends workers never touches the socket, on which another call may be waiting.
"""

from __future__ import annotations

import array
import contextlib
import errno
import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack

from mpwds.errors import MpwdsError
from mpwds.loader.processes import lifeline, parent_environment, processes
from mpwds.loader.processes import setup as worker_setup
from mpwds.loader.processes.loaded_code import LoadedCode
from mpwds.loader.processes.parent_environment import ParentEnvironment
from mpwds.loader.processes.processes import WorkerEnds, WorkerProcess
from mpwds.loader.processes.setup import WorkerSetup
from mpwds.loader.worker import worker

IDLE_S = 60
"""Starting a server takes up to 0.7 s, with torch: this much idle time makes that 1.2 % at the most."""

STOPPED_S = 5.0
"""How long a server may be stopped (SIGSTOP) while it is waited for, before it is killed."""

_LOOK_EVERY_S = 0.25
_END_GRACE_S = 0.2
_LENGTH = struct.Struct("<I")
_STATUS = struct.Struct("<i")
_READ_NBYTES = 64 << 10
_OWN_STREAMS = (1, 2)
_MOST_DESCRIPTORS = 1 + len(WorkerEnds._fields) + len(_OWN_STREAMS) + 1
_IMPORT = "import"
_FORK = "fork"


class ServerGone(MpwdsError):
    """The fork server has ended, or was killed because it was stopped."""


class ForkServer:
    """The training process' side of a server, which starts at once. Several threads may use it.

    The server ends when this object is collected; its workers refer to it.

    Attributes:
        code: The code that this process had loaded when the server started.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self) -> None:
        processes.fill_standard_descriptors()
        self.code = LoadedCode()
        self._lock = threading.Lock()
        self._unanswered = 0
        self._received = b""
        with contextlib.ExitStack() as its_ends, contextlib.ExitStack() as ours:
            self._socket, connection = socket.socketpair()
            its_ends.callback(connection.close)
            ours.callback(self._socket.close)
            held, lifeline_end = os.pipe()
            its_ends.callback(os.close, held)
            ours.callback(os.close, lifeline_end)
            for end in (self._socket.fileno(), lifeline_end):
                lifeline.guard(end)
                ours.callback(lifeline.unguard, end)
            descriptors = [connection.fileno(), held]
            self._process = processes.spawn(
                "mpwds.loader.processes.forkserver:serve", descriptors, [*descriptors, IDLE_S]
            )
            weakref.finalize(self, _end, os.getpid(), ours.pop_all(), self._process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_gone(self) -> bool:
        """Whether the server has ended."""
        poller = select.poll()
        poller.register(self._process, select.POLLIN)
        return bool(poller.poll(0))

    def begin_import(self, modules: list[str]) -> None:
        """Has the server import modules, without waiting for it."""
        with self._lock:
            self._send([_IMPORT, modules, parent_environment.current()], [])

    def prepare(self, modules: list[str]) -> None:
        """Waits until the server has imported modules; it skips those that cannot be imported.

        Raises:
            ServerGone: The server has ended.
        """
        self._ask([_IMPORT, modules, parent_environment.current()], [])

    def fork(self, index: int, setup: int, ends: WorkerEnds) -> WorkerProcess:
        """Forks worker ``index``, which reads the stored setup and serves at ``ends``.

        Raises:
            ServerGone: The server has ended.
            OSError: The server has no processes or descriptors left.
        """
        streams = [stream if _is_open(stream) else ends.status for stream in _OWN_STREAMS]
        shares = [stream != ends.status for stream in streams]
        status, its_status = os.pipe()
        try:
            pid = self._ask([_FORK, index, shares], [setup, *ends, *streams, its_status])
        except BaseException:
            os.close(status)
            raise
        finally:
            os.close(its_status)
        return _ForkedWorker(pid, self, status)

    def wait_for(self, descriptor: int, event: int) -> None:
        """Waits until a descriptor is ready whose other end the server has.

        A busy server is waited for, because imports may take long; a stopped one would never answer. When a
        job is stopped and continued, its processes wake one by one, so what counts is how often the server
        was found stopped, not how much time has passed.

        Raises:
            ServerGone: The server was stopped for ``STOPPED_S``, and has been killed.
        """
        poller = select.poll()
        poller.register(descriptor, event)
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
        with self._lock:
            self._send(request, descriptors)
            while self._unanswered:  # replies that nobody has waited for come first
                result, error_number, message = self._receive()
        if error_number:
            raise OSError(error_number, os.strerror(error_number), "the process that forks the workers")
        if message:
            raise MpwdsError(f"the process that forks the workers failed: {message}")
        return int(result)

    def _send(self, request: list[Any], descriptors: list[int]) -> None:
        body = msgpack.packb(request, unicode_errors="surrogateescape")
        data = memoryview(_LENGTH.pack(len(body)) + body)
        rights = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        )
        with processes.interrupts_deferred():  # half a request would be read together with the next
            while data:
                self.wait_for(self._socket.fileno(), select.POLLOUT)
                try:
                    sent = self._socket.sendmsg([data], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                except BlockingIOError:
                    continue
                except ConnectionError:
                    raise _gone() from None
                data, rights = data[sent:], []
            self._unanswered += 1

    def _receive(self) -> list[Any]:
        """The next reply: a result, an error's number and its message."""
        while True:
            start = _LENGTH.size
            if len(self._received) >= start:
                end = start + _LENGTH.unpack_from(self._received)[0]
                if len(self._received) >= end:
                    with processes.interrupts_deferred():
                        body, self._received = self._received[start:end], self._received[end:]
                        self._unanswered -= 1
                    reply: list[Any] = msgpack.unpackb(body)
                    return reply
            self.wait_for(self._socket.fileno(), select.POLLIN)
            with processes.interrupts_deferred():
                try:
                    data = self._socket.recv(_READ_NBYTES)
                except ConnectionError:
                    data = b""
                self._received += data
            if not data:
                raise _gone()


class _ForkedWorker(WorkerProcess):
    """A worker that the server has forked, and reaps; its exit status comes by the pipe ``status``."""

    def __init__(self, pid: int, server: ForkServer, status: int) -> None:
        self._server = server
        self._status = status
        super().__init__(pid)
        if self._ended:  # the server had reaped it before it could be watched
            self.exitcode = self._reap()

    def _reap(self) -> int:
        data = b""
        try:
            self._server.wait_for(self._status, select.POLLIN)
            data = os.read(self._status, _STATUS.size)
        except ServerGone as error:
            self.hint = self.hint or str(error)
        finally:
            os.close(self._status)
            del self._server  # it may end now, even if an exception's traceback keeps this worker
        if data:
            return int(_STATUS.unpack(data)[0])
        self.hint = self.hint or "the process that forks the workers is gone, and they end with it"
        return -signal.SIGKILL


def start(modules: list[str]) -> None:
    """Starts this process' server, if none runs, and has it import modules, without waiting for it."""
    server, is_new = _running()
    if is_new:
        server.begin_import(modules)


def ready(modules: list[str]) -> ForkServer:
    """This process' server, after it has imported modules. Ctrl-C ends the wait.

    A server that has ended is replaced. So is one that may have imported code that this process has loaded
    again since (``importlib.reload``); it stays until its last worker ends.

    Raises:
        ServerGone: A new server ended while it imported the modules.
        OSError: A new server cannot be started.
    """
    server, is_new = _running()
    if not is_new:
        try:
            if not server.code.has_changed():
                server.prepare(modules)
                return server
        except ServerGone:
            pass
        let_go()
        server, _ = _running()
    server.prepare(modules)
    return server


def let_go() -> None:
    """Ends this process' server as soon as its last worker has ended; the next loader starts another."""
    global _current
    _current = None


def _running() -> tuple[ForkServer, bool]:
    """This process' server, and whether it was just started."""
    global _current
    with _starting, processes.interrupts_deferred():
        server = _current
        if server is not None and not server.is_gone:
            return server, False
        _current = server = ForkServer()
        return server, True


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


def _gone() -> ServerGone:
    return ServerGone("the process that forks the workers is gone: see its message above")


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def serve(connection: int, held: int, idle_s: int) -> None:
    """Entry of the server's process, with its ends of the socket pair and of the lifeline."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lifeline.kill_at_end_of(held)
    os.set_inheritable(held, False)
    gc.disable()  # collections would take an eighth of the time of an import
    # If workers held this end, the trainer would wait for ever for the reply of a server that is gone.
    lifeline.guard(connection)
    with contextlib.suppress(ConnectionError):  # the end of a trainer, in the middle of a request too
        _Server(socket.socket(fileno=connection)).run(idle_s)
    os._exit(0)  # exit handlers of imported modules run in the trainer, not here


class _Server:
    def __init__(self, connection: socket.socket) -> None:
        connection.set_inheritable(False)
        self._connection = connection
        self._statuses: dict[int, int] = {}

    def run(self, idle_s: float) -> None:
        """Answers requests until the trainer is gone, or there was nothing to do for ``idle_s``."""
        signal.signal(signal.SIGCHLD, lambda *_: self._reap())
        trainer = os.getppid()
        waiting = select.poll()
        waiting.register(self._connection, select.POLLIN)
        busy_until = time.monotonic()
        while os.getppid() == trainer and time.monotonic() - busy_until < idle_s:
            if waiting.poll(lifeline.PARENT_CHECK_S * 1000):
                head, descriptors, is_whole = self._receive_head()
                self._answer(head, descriptors, is_whole)
                busy_until = time.monotonic()
            elif self._statuses:
                busy_until = time.monotonic()

    def _receive_head(self) -> tuple[bytes, list[int], bool]:
        """The length of a request, its descriptors, and whether all of them have come."""
        space = socket.CMSG_LEN(_MOST_DESCRIPTORS * array.array("i").itemsize)
        head, ancillary, flags, _ = self._connection.recvmsg(_LENGTH.size, space, socket.MSG_CMSG_CLOEXEC)
        descriptors = array.array("i")
        for _, _, content in ancillary:
            descriptors.frombytes(content)
        return head, list(descriptors), not flags & socket.MSG_CTRUNC

    def _answer(self, head: bytes, descriptors: list[int], is_whole: bool) -> None:
        request = self._read(_LENGTH.unpack(head + self._read(_LENGTH.size - len(head)))[0])
        kind, *arguments = msgpack.unpackb(request, unicode_errors="surrogateescape")
        reply: list[Any] = [0, 0, ""]
        try:
            if not is_whole:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            reply[0] = self._import(*arguments) if kind == _IMPORT else self._fork(descriptors, *arguments)
        except OSError as error:
            reply[1] = error.errno or errno.EIO
        except Exception as error:
            reply[2] = f"{type(error).__name__}: {error}"
        for descriptor in descriptors:
            os.close(descriptor)
        body = msgpack.packb(reply)
        self._connection.sendall(_LENGTH.pack(len(body)) + body)

    def _read(self, nbytes: int) -> bytes:
        data = bytearray()
        while len(data) < nbytes:
            part = self._connection.recv(nbytes - len(data))
            if not part:
                raise ConnectionError("the trainer is gone")
            data += part
        return bytes(data)

    def _import(self, modules: list[str], environment: list[Any]) -> int:
        parent_environment.adopt(ParentEnvironment(*environment))
        with _nothing_printed():
            for module in modules:
                if module not in sys.modules:
                    # A worker that needs a module that fails reports the error.
                    with contextlib.suppress(BaseException):
                        importlib.import_module(module)
        # The workers' collectors skip what all of them share: no pause of 80 ms, no private copies.
        gc.freeze()
        return 0

    def _fork(self, descriptors: list[int], index: int, shares: list[bool]) -> int:
        setup, *rest = descriptors
        ends = WorkerEnds(*rest[: len(WorkerEnds._fields)])
        *streams, status = rest[len(WorkerEnds._fields) :]

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
            worker.serve(index, read, ends)

        lifeline.guard(status)  # workers must not hold it: its end tells that this process is gone
        try:
            pid = processes.fork(live)
        except BaseException:
            lifeline.unguard(status)
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
                    os.write(status, _STATUS.pack(os.waitstatus_to_exitcode(code)))
                lifeline.unguard(status)
                os.close(status)


@contextlib.contextmanager
def _nothing_printed() -> Iterator[None]:
    """Discards what modules print when they are imported: the trainer prints it, or a worker will."""
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
