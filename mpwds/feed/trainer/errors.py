"""A worker's exception, from a server that is not trusted."""

from __future__ import annotations

import builtins
import contextlib
from typing import Any

from mpwds import errors
from mpwds.errors import MpwdsError
from mpwds.loader.engine.failures import with_cause
from mpwds.pipeline.notes import add_note


def revive(fields: dict[str, Any], where: str) -> BaseException:
    """The exception that an ``error`` message describes. Nothing is unpickled.

    Python's own exceptions and those of this package come with their type if their arguments are plain.
    Others become an :class:`MpwdsError` with the same text.
    """
    name = str(fields["type"])
    kind: Any = getattr(builtins, name, None) or getattr(errors, name, None)
    error: BaseException = MpwdsError(fields["summary"])
    is_error = isinstance(kind, type) and issubclass(kind, Exception)
    if is_error and not issubclass(kind, StopIteration):  # which would end the epoch
        with contextlib.suppress(Exception):  # it takes other arguments
            error = kind(*fields["arguments"])
    for note in fields["notes"]:
        add_note(error, note)
    return with_cause(error, fields, where)
