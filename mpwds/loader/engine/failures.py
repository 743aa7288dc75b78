"""Carries a worker's exception to the trainer, which raises it with its own type."""

from __future__ import annotations

import pickle
import sys
import traceback
from types import FunctionType
from typing import Any

from mpwds import pickling
from mpwds.errors import MpwdsError, WorkerTraceback
from mpwds.nest.nodes import PLAIN_OR_INT
from mpwds.tracebacks import FULL, shorten


def describe(error: BaseException) -> dict[str, Any]:
    """The fields of a message with ``error``; attributes that cannot be pickled are left out."""
    shorten(error, keep_first=False)
    text = "".join(traceback.format_exception(error))
    if sys.version_info < (3, 11):  # which does not print notes
        text += "".join(f"{note}\n" for note in getattr(error, "__notes__", ()))
    summary = "".join(traceback.format_exception_only(error)).strip()
    arguments = list(error.args)
    if isinstance(error, OSError) and len(arguments) == 2 and error.filename is not None:
        arguments.append(error.filename)  # which args leaves out
    is_plain = set(map(type, arguments)) <= PLAIN_OR_INT
    return {
        "exception": _pickled(error),
        "summary": summary,
        "traceback": text,
        "type": type(error).__qualname__ if is_plain else "",
        "arguments": arguments if is_plain else [],
        "notes": [str(note) for note in getattr(error, "__notes__", ())],
    }


def revive(fields: dict[str, Any], worker: int, pid: int) -> BaseException:
    """The exception that was passed to :func:`describe`, with the worker's traceback as its cause.

    If its type or arguments cannot be pickled, it is a plain :class:`MpwdsError` with the same text.
    """
    error = _unpickled(fields["exception"]) or MpwdsError(fields["summary"])
    return with_cause(error, fields, f"worker {worker} (pid {pid})")


def with_cause(error: BaseException, fields: dict[str, Any], where: str) -> BaseException:
    """An error with the worker's traceback, from the fields of its message, as its cause."""
    error.__cause__ = WorkerTraceback(f"in {where}; {FULL}=1 shows all frames:\n\n{fields['traceback']}")
    return error


def _pickled(error: BaseException) -> bytes | None:
    def dumps(value: Any) -> bytes | None:
        try:
            data = pickling.dumps(value)
            pickle.loads(data)
        except Exception:
            return None
        return data

    if type(error).__reduce__ is not BaseException.__reduce__:
        return dumps(error)
    attributes = {name: value for name, value in vars(error).items() if dumps(value) is not None}
    return dumps((type(error), error.args, attributes))


def _unpickled(data: bytes | None) -> BaseException | None:
    try:
        content = pickle.loads(data) if data is not None else None
        if isinstance(content, tuple):
            cls, arguments, attributes = content
            # Not as pickle would: a user's __init__ may take other arguments than it hands on to its base.
            own_init = isinstance(cls.__init__, FunctionType)
            content = cls.__new__(cls, *arguments) if own_init else cls(*arguments)
            vars(content).update(attributes)
    except Exception:
        return None
    return content if isinstance(content, BaseException) else None
