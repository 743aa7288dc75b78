"""Runs the command ``mpwds`` and shows its errors."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from mpwds.errors import DecodeError, MpwdsError, WrongArgument
from mpwds.pipeline.error_context import notes_of
from mpwds.viewing.wording import printable


@runtime_checkable
class _ParserError(Protocol):
    """An error of the parser itself. Where its class is defined differs between versions of typer."""

    exit_code: int

    def format_message(self) -> str: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``mpwds`` with the arguments of this process, or ``argv``; returns the exit status.

    A wrong argument becomes one line on stderr and status 2. Other errors that a user can cause (missing
    files, damaged shards, missing packages, bad values, a stage that fails) become one line and status 1;
    ``--debug`` shows the traceback as well. Ctrl-C ends the command silently, with status 130.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed: no file that a command opens may get its number
            stream = open(os.devnull, "r" if name == "stdin" else "w")  # noqa: SIM115
            os.set_inheritable(stream.fileno(), True)  # workers have it, too
            setattr(sys, name, stream)
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _run(argv: Sequence[str]) -> int:
    try:
        from mpwds.cli.app import Invocation
    except ImportError as error:
        print(f"mpwds: error: {error}: the command line needs pip install 'mpwds[cli]'", file=sys.stderr)
        return 1
    invocation = Invocation()
    try:
        return invocation.run(argv)
    except (MpwdsError, OSError, ValueError, ImportError) as error:
        if invocation.debug:
            traceback.print_exc()
        return _fail(invocation.command, _in_one_line(error), 2 if isinstance(error, WrongArgument) else 1)
    except Exception as error:
        if isinstance(error, _ParserError):
            message = " ".join(error.format_message().removeprefix("Invalid value: ").split())
            return _fail(invocation.command, message, error.exit_code)
        if invocation.debug or not notes_of(error):
            raise
        # Notes say that the user's own code failed, and where.
        message = f"{type(error).__name__}: {_in_one_line(error)}; --debug shows the traceback"
        return _fail(invocation.command, message, 1)


def _fail(command: str, message: str, status: int) -> int:
    name = f"mpwds {command}".strip()
    # An error may quote what a server or a shard said.
    print(f"{name}: error: {printable(message)}", file=sys.stderr)
    return status


def _in_one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        message = f"{os.fsdecode(error.filename)}: {error.strerror}"
    else:
        message = str(error) or type(error).__name__
    if not isinstance(error, DecodeError):  # whose message already contains its notes
        message = "; ".join([message, *notes_of(error)])
    return " ".join(message.split())
