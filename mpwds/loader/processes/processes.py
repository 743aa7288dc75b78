"""Worker processes: how they start, and how they end, with their trainer at the latest.

*Lifeline.* A worker holds the reading end of a pipe whose writing end only the trainer holds, and ends when
that closes, whatever either of them is doing. A fork of the trainer that kept the writing end or a worker's
channel open would keep the worker alive, so it gets ``/dev/null`` in place of them (:func:`close_on_fork`).
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from mpwds import pidfds
from mpwds.interrupts import interrupts_deferred

OUTPUT_STREAMS = (1, 2)
"""Descriptors of stdout and stderr."""

LEFT_TO_TRAINER = (
    *(signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2),
)
"""Signals that terminals and schedulers send to all processes of a job. The trainer decides what they do."""

PARENT_CHECK_S = 0.5

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)


class WorkerEnds(NamedTuple):
    """The descriptors of a worker's ends (see ``messages.protocol``)."""

    channel: int
    handover: int
    bell: int
    lifeline: int
    status: int


class WorkerProcess:
    """A running worker process, this process' child. It is killed if no descriptor is left to watch it with.

    Attributes:
        exitcode: Its exit status, or ``-n`` if signal ``n`` ended it. ``None`` while it runs, and when other
            code in this process has reaped it.
        hint: Why it was killed, if this process knows.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.exitcode: int | None = None
        self.hint = ""
        self._ended = False
        self._poller = select.poll()
        try:
            self._sentinel = pidfds.open_pidfd(pid)
            self._poller.register(self._sentinel, select.POLLIN)
        except ProcessLookupError:  # it has ended, and other code has reaped it
            self._ended = True
        except OSError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self._reap()
            raise

    def fileno(self) -> int:
        """A descriptor that becomes readable when the process ends."""
        return self._sentinel

    def wait(self, timeout_s: float) -> bool:
        """Waits for the process to end and reaps it; false if it still runs after ``timeout_s``."""
        if not self._ended and self._poller.poll(max(0.0, timeout_s) * 1000):
            self._ended = True
            os.close(self._sentinel)
            self.exitcode = self._reap()
        return self._ended

    def kill(self) -> None:
        if not self._ended:
            with contextlib.suppress(ProcessLookupError):
                pidfds.kill(self._sentinel)

    def _reap(self) -> int | None:
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            return None
        return os.waitstatus_to_exitcode(status)


class Ending(Protocol):
    """A process that :func:`end_all` ends, such as :class:`WorkerProcess`."""

    def wait(self, timeout_s: float) -> bool: ...

    def kill(self) -> None: ...


def end_all(processes: Sequence[Ending], grace_s: float) -> None:
    """Waits ``grace_s`` for all processes to end, then kills those that have not; reaps every one."""
    deadline = time.monotonic() + grace_s
    late = [process for process in processes if not process.wait(deadline - time.monotonic())]
    for process in late:
        process.kill()
    for process in late:
        process.wait(60)


def spawn(entry: str, descriptors: list[int], arguments: list[int]) -> WorkerProcess:
    """Starts a fresh interpreter that calls the function ``entry``, given as ``"module:name"``.

    It inherits only ``descriptors``, under the same numbers, and gets this process' ``sys.path`` and
    interpreter flags. ``__main__`` is not imported again. Unless the user has set their variables, which
    numeric libraries read when they are imported, these use one thread: workers share the machine's cores.
    """
    module, _, name = entry.partition(":")
    path = [item for item in sys.path if isinstance(item, str)]
    # An argument for each item: the system limits the length of one argument to 128 kB.
    program = (
        f"import sys; sys.path[:] = sys.argv[1:]; del sys.argv[1:]; from {module} import {name}; "
        f"{name}({', '.join(map(str, arguments))})"
    )
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
    with _signals_blocked():
        process = subprocess.Popen(
            [sys.executable, *flags, "-c", program, *path],
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            env={**dict.fromkeys(THREAD_VARIABLES, "1"), **os.environ},
        )
    # WorkerProcess reaps it: without this, Popen warns when it is collected.
    process.returncode = 0
    return WorkerProcess(process.pid)


def fork(target: Callable[[], None]) -> int:
    """Forks this process, calls ``target`` in the child and ends it; returns the child's process id."""
    _flush_streams()  # or the child writes the buffered output again
    with _signals_blocked():
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                target()
                status = 0
            except SystemExit as exit_request:
                status = exit_request.code if isinstance(exit_request.code, int) else 1
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                _flush_streams()
                os._exit(status)
    return pid


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # it may be closed, full or None
            stream.flush()


def send_fds(connection: socket.socket, data: bytes, descriptors: Sequence[int]) -> None:
    """Sends a message with descriptors; no SIGPIPE if the peer is gone. ``socket.send_fds`` forgets flags."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    connection.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)


def receive_fds(connection: socket.socket, nbytes: int, most: int) -> tuple[bytes, list[int], bool]:
    """A message with at most ``most`` descriptors, and whether some got lost because there was no room here.

    They are closed on exec: ``socket.recv_fds`` forgets flags, too.
    """
    descriptors = array.array("i")
    space = socket.CMSG_LEN(most * descriptors.itemsize)
    data, ancillary, flags, _ = connection.recvmsg(nbytes, space, socket.MSG_CMSG_CLOEXEC)
    for _, _, content in ancillary:
        descriptors.frombytes(content)
    return data, list(descriptors), bool(flags & socket.MSG_CTRUNC)


def fill_standard_descriptors() -> None:
    """Opens ``/dev/null`` where stdin, stdout or stderr is closed: ours would get that stream's number."""
    with interrupts_deferred():
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(descriptor, True)
        os.close(descriptor)


def leave_signals_to_trainer() -> None:
    """Has this process survive the signals in ``LEFT_TO_TRAINER``, and drops handlers that a fork inherits.

    Programs that this process starts ignore them as well, except SIGTERM, by which it may end them.
    """
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    for number in LEFT_TO_TRAINER:
        signal.signal(number, signal.SIG_IGN if number != signal.SIGTERM else _live_on)
    signal.siginterrupt(signal.SIGTERM, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_TRAINER)


def _live_on(*_: object) -> None:
    """Handles SIGTERM in a worker: if it ends the trainer, the trainer's end ends the worker."""


_forking = threading.local()


def _hold_sigterm() -> None:
    """SIGTERM ends a fork of a worker, such as one of multiprocessing's; until then, it waits."""
    _forking.mask = None
    if signal.getsignal(signal.SIGTERM) is _live_on:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release_sigterm(in_child: bool = False) -> None:
    if _forking.mask is not None:
        if in_child:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


os.register_at_fork(
    before=_hold_sigterm,
    after_in_parent=_release_sigterm,
    after_in_child=lambda: _release_sigterm(in_child=True),
)


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """A worker is born with these signals blocked, so that none reaches it before it has left them alone."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_TRAINER)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


_holds_lifeline = False
_closed_on_fork: set[int] = set()


def die_with_parent(descriptor: int) -> None:
    """Ends this process with the one that holds the writing end of the pipe ``descriptor``.

    A fork of the trainer that was made behind Python's back may keep that end open, so a thread also watches
    for a change of parent. (The parent-death signal comes when the *thread* that started the worker ends.)
    """
    parent = os.getppid()
    kill_at_end_of(descriptor)

    def watch() -> None:
        poller = select.poll()
        poller.register(descriptor, 0)
        while os.getppid() == parent and not poller.poll(PARENT_CHECK_S * 1000):
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="mpwds-lifeline", daemon=True).start()


def holds_lifeline() -> bool:
    """True if this process ends with another one: it is a worker or a fork server."""
    return _holds_lifeline


def kill_at_end_of(descriptor: int) -> None:
    """Has the kernel send SIGKILL to this process when the pipe's writing end closes, or has closed already.

    It does so even while this process is stopped, or stuck in code that holds the interpreter's lock.
    """
    global _holds_lifeline
    _holds_lifeline = True
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    if has_input(descriptor):
        os.kill(os.getpid(), signal.SIGKILL)


def has_input(descriptor: int) -> bool:
    """True if a descriptor can be read, or tells of its end, without waiting."""
    poller = select.poll()  # one for each thread
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(0))


def close_on_fork(descriptor: int) -> None:
    """Keeps a descriptor from forks of this process, until :func:`keep_on_fork`."""
    _closed_on_fork.add(descriptor)


def keep_on_fork(descriptor: int) -> None:
    """Ends :func:`close_on_fork`; call it before the descriptor is closed."""
    _closed_on_fork.discard(descriptor)


def _replace_closed_in_child() -> None:
    """Puts ``/dev/null`` under these numbers: objects that inherit them may close them again."""
    if not _closed_on_fork:
        return
    os.close(next(iter(_closed_on_fork)))  # before anything is opened: there may be no other number left
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in _closed_on_fork - {nothing}:
        try:
            os.dup2(nothing, descriptor, inheritable=False)
        except OSError:  # the limit was lowered since: nobody will get this number either
            os.close(descriptor)
    if nothing not in _closed_on_fork:
        os.close(nothing)
    _closed_on_fork.clear()


os.register_at_fork(after_in_child=_replace_closed_in_child)
