"""The command ``mpwds``: its options, its subcommands, and what it shows when one fails."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence

from mpwds.cli import demo
from mpwds.errors import DecodeError, MpwdsError

_INTERRUPTED = 128 + signal.SIGINT
_NOBODY_READS = 128 + signal.SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``mpwds`` with the arguments of this process, or ``argv``; returns the exit status.

    Errors that a user can cause (missing files, damaged shards, missing packages, bad values) become one line
    on stderr and status 1; ``--debug`` shows the traceback as well. Ctrl-C ends the command silently. After
    ``--help`` and arguments that cannot be parsed, argparse raises ``SystemExit``.

    Example:
        >>> main(["--version"])  # doctest: +ELLIPSIS
        mpwds ...
        0
    """
    parser = _make_parser()
    arguments = parser.parse_args(argv)
    if arguments.version:
        import mpwds

        print(f"mpwds {mpwds.__version__}")
        return 0
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return 2
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        status = run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # Buffered output goes nowhere, so that the interpreter does not fail on it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _NOBODY_READS
    except (MpwdsError, OSError, ValueError, ImportError) as error:
        if arguments.debug:
            traceback.print_exc()
        print(f"mpwds {arguments.command}: error: {_in_one_line(error)}", file=sys.stderr)
        return 1
    return status


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mpwds", description="Feeds deep-learning training from sharded datasets."
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    demo.add_parser(subparsers)
    for subparser in subparsers.choices.values():
        # Suppressed: a default here would undo `mpwds --debug COMMAND`.
        subparser.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
        )
    return parser


def _in_one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        message = f"{os.fsdecode(error.filename)}: {error.strerror}"
    else:
        message = str(error) or type(error).__name__
    if not isinstance(error, DecodeError):  # whose message already contains its notes
        message = "; ".join([message, *getattr(error, "__notes__", ())])
    return " ".join(message.split())
