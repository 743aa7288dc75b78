"""Say in an exception which stage it comes from and which element caused it."""

from __future__ import annotations

import functools
from typing import Any

from mpwds.pipeline.stream import Stream


def explain(error: Exception, stage: object, source: Stream[Any], address: Any) -> None:
    """Adds ``in map(crop), on sample "0017" of x-000003.tar`` to ``error``; raise it again after.

    Args:
        error: What the stage's function raised. It keeps its type.
        stage: The stage; ``str(stage)`` is its name.
        source: The stream that describes the address.
        address: The address of the element that the function was called with.

    Raises:
        RuntimeError: ``error`` is a ``StopIteration``, which would end the stream without a word.
    """
    note = f"in {stage}, on {source.describe(address)}"
    if isinstance(error, StopIteration):
        raise RuntimeError(
            f"{note}: a function raised StopIteration, which is no way to end a dataset"
        ) from error
    add_note(error, note)


def add_note(error: BaseException, note: str) -> None:
    """``error.add_note(note)``, also on Python 3.10, where tracebacks do not show it yet.

    Example:
        >>> error = ValueError("bad")
        >>> add_note(error, "in map(crop)")
        >>> error.__notes__
        ['in map(crop)']
    """
    notes = getattr(error, "__notes__", None)
    if notes is None:
        notes = []
        error.__notes__ = notes  # type: ignore[attr-defined]  # typeshed knows it from 3.11 on
    notes.append(note)


def arguments(*values: object, **named: object) -> str:
    """Arguments as one would write them in a call, functions by their names.

    Example:
        >>> arguments(len, None, "rgb8", partial=False)
        "len, None, 'rgb8', partial=False"
    """
    return ", ".join(
        [*map(_argument, values), *(f"{name}={_argument(value)}" for name, value in named.items())]
    )


def _argument(value: object) -> str:
    if isinstance(value, functools.partial):
        value = value.func
    if not callable(value):
        return repr(value)
    return getattr(value, "__name__", None) or f"{type(value).__name__}(...)"
