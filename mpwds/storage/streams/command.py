"""A shell command as a child process that leaves nothing behind.

The protocol between this process and the command:

- The command runs in a session, and so in a process group, of its own. Ctrl-C at the terminal does not
  reach it: this process decides. A shell that waits for the command leads the group, so the group's number
  stays ours until it is reaped.
- ``finish`` waits for a command whose input was closed, or whose output was read to the end. Processes that
  it started in the background go on. ``stop`` ends the whole group: SIGTERM, then, after a second, SIGKILL.
- When this process dies, by SIGKILL too, the kernel sends SIGKILL to the group: the leader holds the
  reading end of a pipe (the lifeline) whose writing end is here, and the kernel signals the pipe's owner,
  the group, when that end closes. (The parent-death signal would come when the *thread* that started the
  command ends, and only to the leader.)
- The command's standard error is passed on to this process's, and its end is kept for the error message.
  This process reads it whenever it waits for the command, so a talkative command does not get stuck.
- A fork of this process closes its copies of the descriptors, so that the command sees the end of its input
  when the parent closes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from mpwds.storage.streams.rewrite import verbose

_TAIL_BYTES = 2048
_PIPE_BYTES = 256 * 1024
_GRACE_S = 1.0
_POLL_MS = 20  # where the system has no pidfd

# The leader waits instead of becoming the command, which may close all descriptors that it does not know,
# the lifeline among them (ssh does). Its traps keep it alive until the command has ended; the command
# itself has none.
_LEADER = 'trap : TERM HUP INT; "$@"; exit $?'

_running: weakref.WeakSet[Command] = weakref.WeakSet()


class Command:
    """A command that runs, and whose output is read or whose input is written.

    Args:
        arguments: The program and its arguments.
        shown: The command's name in messages.
        mode: ``"r"`` to read its output, ``"w"`` to write its input. The other one is this process's.
        environment: Variables to add to this process's.

    Attributes:
        descriptor: Where to read or write; non-blocking in mode ``"w"``.
        status: The exit status once the command has ended (128 + n if signal n killed it), else ``None``.

    Raises:
        OSError: The process cannot be started.

    Example:
        >>> command = Command(["echo", "hello"], "echo", "r")
        >>> command.wait_ready()
        True
        >>> os.read(command.descriptor, 100), command.finish()
        (b'hello\\n', 0)
    """

    def __init__(
        self, arguments: Sequence[str], shown: str, mode: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.status: int | None = None
        self._shown = shown
        self._pid = os.getpid()
        self._tail = bytearray()
        self._passes_on = True
        # The lifeline is made first: descriptors are closed in their order when a process dies, so a
        # command is killed before it sees the end of an input that is not complete.
        self._lifeline, self._held_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _LEADER, "sh", *arguments],
                bufsize=0,
                stdin=subprocess.PIPE if mode == "w" else None,
                stdout=subprocess.PIPE if mode == "r" else None,
                stderr=subprocess.PIPE,
                pass_fds=(self._lifeline,),
                start_new_session=True,
                env=None if environment is None else {**os.environ, **environment},
            )
        except BaseException:
            os.close(self._lifeline)
            os.close(self._held_end)
            raise
        _kill_at_end_of(self._lifeline, self._process.pid)
        self._stream = self._process.stdout if mode == "r" else self._process.stdin
        self.descriptor = _fileno(self._stream)
        self._errors = _fileno(self._process.stderr)
        os.set_blocking(self._errors, False)
        if mode == "w":
            os.set_blocking(self.descriptor, False)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with contextlib.suppress(OSError):  # beyond what one user may have
                fcntl.fcntl(self.descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._event = select.POLLIN if mode == "r" else select.POLLOUT
        self._poller = select.poll()
        self._poller.register(self.descriptor, self._event)
        self._poller.register(self._errors, select.POLLIN)
        _running.add(self)

    @property
    def is_ours(self) -> bool:
        """Whether this process started the command: a fork of that process has no part in it."""
        return self._pid == os.getpid()

    @property
    def complaint(self) -> str:
        """What the command said last on standard error."""
        return bytes(self._tail).decode("utf-8", "replace").strip()

    def wait_ready(self, timeout_s: float | None = None) -> bool:
        """Waits until the descriptor can be read or written; true if it can, false after ``timeout_s``."""
        while True:
            events = self._poller.poll(None if timeout_s is None else timeout_s * 1000)
            if not events:
                return False
            for descriptor, _ in events:
                if descriptor == self.descriptor:
                    return True
            self._read_errors()

    def finish(self) -> int:
        """Closes this end and waits for the command to end; returns its exit status."""
        if self.status is None and self.is_ours:
            self._close_stream()
            self._wait_for_exit(None)
            self._read_errors()
            self._reap()
        return self.status or 0

    def stop(self) -> None:
        """Ends the command and its children, in the background too; does nothing once it has ended."""
        if self.status is not None or not self.is_ours:
            return
        self._passes_on = False  # complaints about the broken pipe would only puzzle the user
        try:
            self._signal(signal.SIGTERM)
            if self._event == select.POLLIN:
                self._close_stream()
            self._wait_for_exit(_GRACE_S / 10)
            self._signal(
                signal.SIGTERM
            )  # a shell that was just about to start a program may have lost the first
            self._wait_for_exit(_GRACE_S)
        finally:
            self._signal(signal.SIGKILL)
            self._wait_for_exit(None)
            self._close_stream()
            self._reap()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _wait_for_exit(self, timeout_s: float | None) -> None:
        """Waits until the leader has ended, without reaping it: its group's number must stay taken."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with _exit_descriptor(self._process.pid) as exited:
            poller = select.poll()
            if exited is not None:
                poller.register(exited, select.POLLIN)
            if self._errors >= 0:
                poller.register(self._errors, select.POLLIN)
            while not self._has_ended():
                left_ms = None if deadline is None else max(0.0, (deadline - time.monotonic()) * 1000)
                if left_ms == 0:
                    return
                wait_ms = left_ms if exited is not None else min(_POLL_MS, left_ms or _POLL_MS)
                if any(descriptor == self._errors for descriptor, _ in poller.poll(wait_ms)):
                    errors = self._errors
                    self._read_errors()
                    if self._errors < 0:
                        poller.unregister(errors)

    def _has_ended(self) -> bool:
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # someone reaped it for us, as a program that ignores SIGCHLD does
            return True

    def _read_errors(self) -> None:
        while self._errors >= 0:
            try:
                said = os.read(self._errors, 65536)
            except BlockingIOError:
                return
            if not said:
                with contextlib.suppress(KeyError):
                    self._poller.unregister(self._errors)
                self._close_errors()
                return
            self._tail = (self._tail + said)[-_TAIL_BYTES:]
            if self._passes_on:
                with contextlib.suppress(OSError, ValueError):
                    os.write(2, said)

    def _close_stream(self) -> None:
        if self._stream is not None:
            with contextlib.suppress(KeyError):
                self._poller.unregister(self.descriptor)
            self._stream.close()
            self._stream = None

    def _close_errors(self) -> None:
        if self._errors >= 0 and self._process.stderr is not None:
            self._errors = -1
            self._process.stderr.close()

    def _reap(self) -> None:
        if hasattr(fcntl, "F_SETSIG"):  # what the command left in the background shall not be killed now
            flags = fcntl.fcntl(self._lifeline, fcntl.F_GETFL)
            fcntl.fcntl(self._lifeline, fcntl.F_SETFL, flags & ~os.O_ASYNC)
        code = self._process.wait()
        self.status = 128 - code if code < 0 else code
        self._close_errors()
        os.close(self._lifeline)
        os.close(self._held_end)
        _running.discard(self)
        if verbose():
            print(f"GOPEN exit {self.status} {self._shown}", file=sys.stderr)

    def _abandon(self) -> None:
        """In a fork: closes the descriptors and leaves the command alone."""
        self.status = 0
        self._process.returncode = 0
        self._close_stream()
        self._close_errors()
        os.close(self._lifeline)
        os.close(self._held_end)


def _kill_at_end_of(lifeline: int, group: int) -> None:
    """Has the kernel send SIGKILL to a process group when the pipe's writing end closes (Linux only)."""
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -group)
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _fileno(stream: IO[bytes] | None) -> int:
    return -1 if stream is None else stream.fileno()


@contextlib.contextmanager
def _exit_descriptor(pid: int) -> Iterator[int | None]:
    """A descriptor that can be read once a child has ended; ``None`` where the system has no such thing."""
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _abandon_in_child() -> None:
    for command in list(_running):
        command._abandon()
    _running.clear()


os.register_at_fork(after_in_child=_abandon_in_child)
