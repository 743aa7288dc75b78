"""Byte streams from and to programs: shell commands (``pipe:``) and curl.

A command is a child process of which nothing remains:

- It runs in a session, and so in a process group, of its own. Ctrl-C at the terminal does not reach it. A
  shell that waits for the command leads the group, so nobody else gets the group's number until it is reaped.
- ``finish`` waits for a command whose input was closed, or whose output was read to the end. Background
  processes of the command live on. ``stop`` ends the whole group: SIGTERM, then, after a second, SIGKILL.
- When this process dies, even by SIGKILL, the kernel sends SIGKILL to the group: the leader holds the reading
  end of a pipe (the lifeline) whose writing end is here, and the kernel signals the pipe's owner, the group,
  when that end closes. (The parent-death signal would come when the *thread* that started the command ends,
  and only to the leader.)
- This process reads the command's standard error whenever it waits for the command, passes it on and keeps
  its end for the error message. So a command that writes a lot does not block.
- A fork of this process closes its copies of the descriptors, so that the command sees the end of its input
  when the parent closes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import IO, Any, BinaryIO, cast

from mpwds.errors import StreamError, StreamNotFound
from mpwds.pidfds import open_pidfd
from mpwds.storage.streams.base import DiscardsOnError, InputStream
from mpwds.storage.streams.urls import refuse_in_secure_mode, url_scheme, verbose, without_credentials

_SIGPIPE_STATUS = 128 + signal.SIGPIPE
_CURL_NOT_FOUND = 78
_BUFFER_BYTES = 256 * 1024
_STALL_S = 60
_TAIL_BYTES = 2048
_PIPE_BYTES = 256 * 1024
_GRACE_S = 1.0
_log = logging.getLogger("mpwds")

# The leader waits instead of becoming the command, which may close all descriptors that it does not know,
# the lifeline among them (ssh does). Its traps keep it alive until the command has ended; the command
# itself has none. It starts the command when the lifeline is in force, which a line from the descriptor $0
# tells it: a process that is killed before leaves nothing that runs.
_LEADER = 'trap : TERM HUP INT; read -r _ < "/proc/self/fd/$0" || exit; "$@"; exit $?'

_running: weakref.WeakSet[_RunningCommand] = weakref.WeakSet()


def open_pipe(url: str, mode: str = "rb", bufsize: int = 8192) -> BinaryIO:
    """Runs a shell command, and reads its output or writes its input.

    ``/bin/sh`` runs the command, so the status of ``pipe:a | b`` is that of ``b`` (``pipe:bash -o pipefail -c
    '...'`` checks all). The status is checked when the output has been read to its end, or the input was
    closed. A status other than 0 is an error that quotes the end of the command's standard error. To ignore
    failures, end the command with ``|| true``. When reading, death by SIGPIPE (status 141) is not a failure.

    *Reading*: ``close`` before the end stops the command and all it started; that is not an error. *Writing*:
    ``close`` waits for the command. ``discard``, a ``with`` block that raises, and garbage collection stop it
    before it sees the end of its input; what it has written elsewhere by then stays there. When this process
    dies, so does the command. In a fork of this process the stream cannot be used.

    Errors are ``StreamError``, and come from ``read``, ``write``, ``flush`` and ``close``, too.

    Source:
        ``webdataset.gopen.gopen_pipe``.

    Example:
        >>> with open_pipe("pipe:echo hello") as stream:
        ...     stream.read()
        b'hello\\n'
        >>> open_pipe("pipe:echo no such bucket >&2; exit 3").read()
        Traceback (most recent call last):
            ...
        mpwds.errors.StreamError: pipe:echo ...: the command failed with exit status 3 after 0 bytes; ...
    """
    shown = without_credentials(url)
    refuse_in_secure_mode(f"commands may not be run ({shown})")
    return open_command(["/bin/sh", "-c", url[len("pipe:") :]], shown, mode, bufsize)


def open_command(
    arguments: Sequence[str],
    shown: str,
    mode: str,
    bufsize: int = 8192,
    environment: Mapping[str, str] | None = None,
    detects_truncation: bool = False,
    not_found_status: int | None = None,
) -> BinaryIO:
    """Like :func:`open_pipe`, for a program that is run without a shell.

    ``shown`` is the stream's name in messages, ``environment`` is added to this process's.
    ``detects_truncation``: whether the program fails if it does not write everything. ``not_found_status``
    is its exit status if there is no such file: that raises ``StreamNotFound``.
    """
    try:
        if mode[0] == "r":
            output = _Output(arguments, shown, environment)
            output.detects_truncation, output.not_found_status = detects_truncation, not_found_status
            return io.BufferedReader(output, max(bufsize, _BUFFER_BYTES))
        return _PipeWriter(_Input(arguments, shown, environment), max(bufsize, 1))
    except OSError as error:
        raise StreamError(f"{shown}: the command cannot be started: {error}", shown) from error


def open_curl(url: str, mode: str = "rb", bufsize: int = 8192, *, offset: int = 0) -> BinaryIO:
    """A stream from an FTP or SSH server, or to one: ``ftp: ftps: sftp: scp:``.

    The program ``curl`` opens it, as in webdataset; not every build of it supports ``sftp`` and ``scp``. A
    connection that breaks, or is silent for a minute, is an error; the stream does not resume. Keep passwords
    in ``~/.netrc`` rather than in the URL, which other users of the machine can see while the program runs.

    Source:
        ``webdataset.gopen.gopen_curl``.
    """
    shown = without_credentials(url)
    program = shutil.which("curl")
    if program is None:
        missing = f"{url_scheme(url)}: URLs are opened by the program curl, which is not installed"
        raise StreamError(f"{shown}: {missing}", shown)
    arguments = [program, "--fail", "--silent", "--show-error", "--globoff", "--netrc-optional"]
    arguments += ["--connect-timeout", "30", "--speed-time", str(_STALL_S), "--speed-limit", "1"]
    if mode[0] == "w":
        arguments += ["--upload-file", "-"]
    elif offset > 0:
        arguments += ["--continue-at", str(offset)]
    return open_command([*arguments, url], shown, mode, bufsize, not_found_status=_CURL_NOT_FOUND)


class _RunningCommand(InputStream):
    """A running command, whose output is read or whose input is written.

    Attributes:
        status: The exit status once the command has ended (128 + n if signal n killed it), else ``None``.
    """

    _reads: bool  # the command's output; else its input is written

    def __init__(self, arguments: Sequence[str], shown: str, environment: Mapping[str, str] | None) -> None:
        self.status: int | None = 0  # so far there is nothing to end
        self.name = shown
        self._pid = os.getpid()
        self._position = 0
        self._tail = bytearray()
        self._passes_on = True
        # The lifeline is made first: descriptors are closed in their order when a process dies, so a
        # command is killed before it sees the end of an input that is not complete.
        self._lifeline, self._held_end = os.pipe()
        waiting, ready = os.pipe()
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _LEADER, str(waiting), *arguments],
                bufsize=0,
                stdin=None if self._reads else subprocess.PIPE,
                stdout=subprocess.PIPE if self._reads else None,
                stderr=subprocess.PIPE,
                pass_fds=(self._lifeline, waiting),
                start_new_session=True,
                env=None if environment is None else {**os.environ, **environment},
            )
            fcntl.fcntl(self._lifeline, fcntl.F_SETOWN, -self._process.pid)
            fcntl.fcntl(self._lifeline, fcntl.F_SETSIG, signal.SIGKILL)
            self._kill_with_us(True)
            os.write(ready, b"\n")
            self._exited = open_pidfd(self._process.pid)  # readable once the leader has ended
        except BaseException:
            os.close(self._held_end)
            os.close(self._lifeline)
            raise
        finally:
            os.close(waiting)
            os.close(ready)
        self._stream = cast("IO[bytes]", self._process.stdout if self._reads else self._process.stdin)
        self._errors = cast("IO[bytes]", self._process.stderr)
        self._descriptor = self._stream.fileno()
        os.set_blocking(self._descriptor, self._reads)
        os.set_blocking(self._errors.fileno(), False)
        with contextlib.suppress(OSError):  # beyond what one user may have
            fcntl.fcntl(self._descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self.status = None
        _running.add(self)

    def fileno(self) -> int:
        return self._descriptor

    def is_live(self) -> bool:
        """True if the command has not ended, and this process started it: not one that it was forked from."""
        return self.status is None and self._pid == os.getpid()

    def wait_ready(self, timeout_s: float | None = None) -> bool:
        """Waits until the descriptor can be read or written; returns false after ``timeout_s``."""
        return self._wait_for(self._descriptor, select.POLLIN if self._reads else select.POLLOUT, timeout_s)

    def finish(self) -> int:
        """Closes this end and waits for the command to end; returns its exit status."""
        if self.is_live():
            self._stream.close()
            self._wait_for_exit()
            self._read_errors()
            self._reap()
        return self.status or 0

    def stop(self) -> None:
        """Ends the command and its children, in the background too; does nothing once it has ended."""
        if not self.is_live():
            return
        self._passes_on = False  # complaints about the broken pipe would only puzzle the user
        try:
            self._signal(signal.SIGTERM)
            if self._reads:
                self._stream.close()
            self._wait_for_exit(_GRACE_S / 10)
            # A shell that was just about to start a program may have lost the first.
            self._signal(signal.SIGTERM)
            self._wait_for_exit(_GRACE_S)
        finally:
            self._signal(signal.SIGKILL)
            self._wait_for_exit()
            self._reap()

    def abandon(self) -> None:
        """In a fork: closes the descriptors and leaves the command alone."""
        self._process.returncode = 0
        self._close_descriptors()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            what = "the command belongs to the process that this one was forked from; open the stream here"
            raise StreamError(f"{self.name}: {what}", self.name)

    def _error(self, what: str, kind: type[StreamError] = StreamError) -> StreamError:
        """An error with the end of the command's standard error."""
        complaint = without_credentials(bytes(self._tail).decode("utf-8", "replace").strip())
        said = f"; it said: {complaint}" if complaint else " and said nothing on standard error"
        return kind(f"{self.name}: the command {what}{said}", self.name, self._position)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _wait_for_exit(self, timeout_s: float | None = None) -> None:
        """Waits until the leader has ended, without reaping it: its group's number must stay taken."""
        self._wait_for(self._exited, select.POLLIN, timeout_s)

    def _wait_for(self, descriptor: int, event: int, timeout_s: float | None) -> bool:
        """Waits for a descriptor, and reads standard error meanwhile; returns false after ``timeout_s``."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            poller = select.poll()
            poller.register(descriptor, event)
            if not self._errors.closed:
                poller.register(self._errors, select.POLLIN)
            left_ms = None if deadline is None else max(0.0, (deadline - time.monotonic()) * 1000)
            ready = dict(poller.poll(left_ms))
            if descriptor in ready or not ready:
                return bool(ready)
            self._read_errors()

    def _read_errors(self) -> None:
        while not self._errors.closed and (said := self._errors.read(65536)) is not None:
            if not said:
                self._errors.close()
            self._tail = (self._tail + said)[-_TAIL_BYTES:]
            if self._passes_on:
                with contextlib.suppress(OSError):
                    os.write(2, said)

    def _kill_with_us(self, on: bool) -> None:
        """Sets whether the kernel sends SIGKILL to the group when our end of the lifeline closes."""
        flags = fcntl.fcntl(self._lifeline, fcntl.F_GETFL)
        fcntl.fcntl(self._lifeline, fcntl.F_SETFL, flags | os.O_ASYNC if on else flags & ~os.O_ASYNC)

    def _reap(self) -> None:
        self._kill_with_us(False)  # background processes of the command live on
        code = self._process.wait()
        self.status = 128 - code if code < 0 else code
        self._close_descriptors()
        _running.discard(self)
        if verbose():
            print(f"GOPEN exit {self.status} {self.name}", file=sys.stderr)

    def _close_descriptors(self) -> None:
        self._stream.close()
        self._errors.close()
        for descriptor in (self._held_end, self._lifeline, self._exited):
            os.close(descriptor)


class _Output(_RunningCommand):
    _reads = True
    _failure: StreamError | None = None
    not_found_status: int | None = None

    def readinto(self, buffer: Any) -> int:
        if self._failure is not None:
            raise self._failure
        self._check_process()
        if self.status is not None:
            return 0
        self.wait_ready()
        count = os.readv(self._descriptor, [buffer])
        self._position += count
        if count == 0:
            self._end()
        return count

    def close(self) -> None:
        if self.closed:
            return
        try:
            if self.is_live() and self._is_at_end():
                self._end()
        finally:
            self.stop()
            super().close()

    def _is_at_end(self) -> bool:
        """True if a reader that stopped here, as tar's does, left nothing unread."""
        return self.wait_ready(timeout_s=0) and not os.read(self._descriptor, 1)

    def _end(self) -> None:
        status = self.finish()
        if status not in (0, _SIGPIPE_STATUS):
            kind = StreamNotFound if status == self.not_found_status else StreamError
            self._failure = self._error(
                f"failed with {_described(status)} after {self._position} bytes", kind
            )
            raise self._failure


class _Input(_RunningCommand):
    _reads = False
    _failed = False

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._check_process()
        self.wait_ready()
        try:
            count = os.write(self._descriptor, data)
        except BrokenPipeError:
            self._failed = True
            ended = f"ended with {_described(self.finish())}"
            raise self._error(f"stopped reading after {self._position} bytes and {ended}") from None
        self._position += count
        return count

    def close(self) -> None:
        if self.closed:
            return
        try:
            status = self.finish()
            if status != 0 and not self._failed:
                raise self._error(f"was given {self._position} bytes and failed with {_described(status)}")
        finally:
            self.stop()
            super().close()

    def discard(self) -> None:
        if self.is_live():
            self.stop()
            _log.warning(
                "%s: the command was stopped after %d bytes; what it has written elsewhere stays there",
                self.name,
                self._position,
            )
        super().close()


class _PipeWriter(DiscardsOnError, io.BufferedWriter):
    raw: _Input

    def discard(self) -> None:
        self.raw.discard()


def _described(status: int) -> str:
    name = next((each.name for each in signal.Signals if each == status - 128), "")
    hint = ", perhaps for want of memory" if name == "SIGKILL" else ""
    return f"exit status {status}" + (f" ({name}{hint})" if name else "")


def _abandon_in_child() -> None:
    for command in list(_running):
        command.abandon()
    _running.clear()


os.register_at_fork(after_in_child=_abandon_in_child)
