"""Byte streams out of and into programs: shell commands (``pipe:``) and curl."""

from __future__ import annotations

import io
import logging
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO

from mpwds.errors import StreamError
from mpwds.storage.streams.command import Command
from mpwds.storage.streams.secure import refuse_in_secure_mode
from mpwds.storage.streams.uploads import DiscardsOnError
from mpwds.storage.streams.urls import url_scheme, without_credentials

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_SIGPIPE_STATUS = 128 + signal.SIGPIPE
_BUFFER_BYTES = 256 * 1024
_STALL_S = 60
_log = logging.getLogger("mpwds")


def open_pipe(url: str, mode: str = "rb", bufsize: int = 8192) -> BinaryIO:
    """Runs a shell command, and reads its output or writes its input.

    ``/bin/sh`` runs the command, so ``pipe:a | b`` takes its status from ``b`` alone (``pipe:bash -o
    pipefail -c '...'`` sees all). The status is checked when the output has been read to its end, or the
    input was closed. Anything but 0 is an error that quotes the end of the command's standard error, which
    this process passes on as well. To ignore failures, end the command with ``|| true``. When reading, death
    by SIGPIPE (status 141) is not a failure.

    *Reading*: ``close`` before the end stops the command and all it started (the pipe breaks, then SIGTERM,
    and SIGKILL after a second); that is not an error. *Writing*: ``close`` waits for the command.
    ``discard``, a ``with`` block that an exception leaves, and garbage collection stop it before it sees the
    end of its input; what it has written elsewhere by then stays there. When this process dies, for whatever
    reason, so does the command. In a fork of this process the stream cannot be used.

    Args:
        url: ``pipe:`` and the command.
        mode: ``"rb"`` or ``"wb"``.
        bufsize: Bytes that are buffered; at least 256 KiB when reading.

    Raises:
        StreamError: The command failed. It comes from ``read``, ``write``, ``flush`` or ``close``.
        SecurityError: The secure mode is on.

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
) -> BinaryIO:
    """Like :func:`open_pipe`, for a program that is run without a shell.

    Args:
        arguments: The program and its arguments.
        shown: The stream's name in messages.
        mode: ``"rb"`` or ``"wb"``.
        bufsize: Bytes that are buffered; at least 256 KiB when reading.
        environment: Variables to add to this process's.

    Raises:
        StreamError: As for :func:`open_pipe`.

    Example:
        >>> with open_command(["cat"], "cat", "wb") as stream:
        ...     stream.write(b"")
        0
    """
    try:
        command = Command(arguments, shown, mode[0], environment)
    except OSError as error:
        raise StreamError(f"{shown}: the command cannot be started: {error}", shown) from error
    if mode[0] == "r":
        return io.BufferedReader(_Output(command, shown), max(bufsize, _BUFFER_BYTES))
    return _PipeWriter(_Input(command, shown), max(bufsize, 1))


def open_curl(url: str, mode: str = "rb", bufsize: int = 8192, *, offset: int = 0) -> BinaryIO:
    """A stream from an FTP or SSH server, or to one: ``ftp: ftps: sftp: scp:``.

    The program ``curl`` does it, as in webdataset; not every build of it knows ``sftp`` and ``scp``. A
    connection that breaks, or is silent for a minute, is an error; the stream does not resume. Keep passwords
    in ``~/.netrc`` rather than in the URL: other users of the machine can see that while the program runs.

    Args:
        url: What to read or write.
        mode: ``"rb"`` or ``"wb"``.
        bufsize: Bytes that are buffered; at least 256 KiB when reading.
        offset: The byte at which to start reading; not for ``scp:``.

    Raises:
        StreamError: There is no ``curl``, or it fails; from ``read`` and ``close`` too.

    Source:
        ``webdataset.gopen.gopen_curl``.
    """
    shown = without_credentials(url)
    program = shutil.which("curl")
    if program is None:
        raise StreamError(
            f"{shown}: {url_scheme(url)}: URLs are opened by the program curl, which is not installed", shown
        )
    arguments = [program, "--fail", "--silent", "--show-error", "--globoff", "--netrc-optional"]
    arguments += ["--connect-timeout", "30", "--speed-time", str(_STALL_S), "--speed-limit", "1"]
    if mode[0] == "w":
        arguments += ["--upload-file", "-"]
    elif offset > 0:
        arguments += ["--continue-at", str(offset)]
    return open_command([*arguments, url], shown, mode, bufsize)


class _Output(io.RawIOBase):
    """A command's standard output."""

    def __init__(self, command: Command, name: str) -> None:
        self.name = name
        self._command = command
        self._position = 0
        self._failure: StreamError | None = None

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._command.descriptor

    def readinto(self, buffer: WriteableBuffer) -> int:
        if self._failure is not None:
            raise self._failure
        _check_process(self._command, self.name)
        if self._command.status is not None:
            return 0
        self._command.wait_ready()
        count = os.readv(self._command.descriptor, [buffer])
        self._position += count
        if count == 0:
            self._end()
        return count

    def close(self) -> None:
        if self.closed:
            return
        try:
            if self._command.status is None and self._command.is_ours and self._is_at_end():
                self._end()
        finally:
            self._command.stop()
            super().close()

    def _is_at_end(self) -> bool:
        """Whether a reader that stopped here, as tar's does, left nothing unread."""
        return self._command.wait_ready(timeout_s=0) and not os.read(self._command.descriptor, 1)

    def _end(self) -> None:
        status = self._command.finish()
        if status not in (0, _SIGPIPE_STATUS):
            self._failure = StreamError(
                f"{self.name}: the command failed with {_described(status)} after {self._position} "
                f"bytes{_complaint(self._command)}",
                self.name,
                self._position,
            )
            raise self._failure


class _Input(io.RawIOBase):
    """A command's standard input."""

    def __init__(self, command: Command, name: str) -> None:
        self.name = name
        self._command = command
        self._position = 0
        self._failed = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._command.descriptor

    def write(self, data: ReadableBuffer) -> int:
        _check_process(self._command, self.name)
        self._command.wait_ready()
        try:
            count = os.write(self._command.descriptor, data)
        except BrokenPipeError:
            self._failed = True
            status = self._command.finish()
            raise StreamError(
                f"{self.name}: the command stopped reading after {self._position} bytes and ended with "
                f"{_described(status)}{_complaint(self._command)}",
                self.name,
                self._position,
            ) from None
        self._position += count
        return count

    def close(self) -> None:
        if self.closed:
            return
        try:
            status = self._command.finish()
            if status != 0 and not self._failed:
                raise StreamError(
                    f"{self.name}: the command was given {self._position} bytes and failed with "
                    f"{_described(status)}{_complaint(self._command)}",
                    self.name,
                    self._position,
                )
        finally:
            self._command.stop()
            super().close()

    def discard(self) -> None:
        if self._command.status is None and self._command.is_ours:
            self._command.stop()
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


def _check_process(command: Command, name: str) -> None:
    if not command.is_ours:
        raise StreamError(
            f"{name}: the command belongs to the process that this one was forked from; open the stream in "
            "this process",
            name,
        )


def _described(status: int) -> str:
    if status <= 128:
        return f"exit status {status}"
    try:
        name = signal.Signals(status - 128).name
    except ValueError:
        return f"exit status {status}"
    hint = ", perhaps for want of memory" if name == "SIGKILL" else ""
    return f"exit status {status} ({name}{hint})"


def _complaint(command: Command) -> str:
    complaint = without_credentials(command.complaint)
    return f"; it said: {complaint}" if complaint else " and said nothing on standard error"
