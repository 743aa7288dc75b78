"""Error handlers: functions that decide what happens when an element causes an exception."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol, TypeAlias, runtime_checkable

from mpwds.pipeline.error_context import notes_of
from mpwds.suggestions import shown
from mpwds.warn import warn

Handler: TypeAlias = Callable[[Exception], Any]
"""Called with the exception, which has notes for people and an ``incident`` for programs.

If the handler returns true, the stage skips the element and continues; if it returns false, the stage's
stream ends. A handler may also raise. These are webdataset's rules. An ``ImportError`` never reaches a
handler, because a missing package is not the element's fault.
"""


@runtime_checkable
class CountingHandler(Protocol):
    """A handler that also sees each element of a stage: ``watch`` returns a function to call for ``next``."""

    def __call__(self, error: Exception) -> Any: ...

    def watch(self, stage: str, next: Callable[[], Any]) -> Callable[[], Any]: ...


def reraise_exception(error: Exception) -> NoReturn:
    """Handler that raises the exception: the default of all stages.

    Example:
        >>> from mpwds import DataPipeline
        >>> try:
        ...     list(DataPipeline(["1", "one"]).map(int, handler=reraise_exception))
        ... except ValueError as error:
        ...     print(error, *error.__notes__, sep=": ")
        invalid literal for int() with base 10: 'one': in map(int), on element 1
    """
    try:
        raise error
    finally:
        # The traceback refers to this frame. If the frame kept ``error``, that cycle would keep the pipeline
        # and a loader's workers alive until the garbage collector runs.
        del error


def ignore_and_continue(error: Exception) -> bool:
    """Handler that skips the element and continues.

    Example:
        >>> from mpwds import DataPipeline
        >>> list(DataPipeline(["1", "one", "2"]).map(int, handler=ignore_and_continue))
        [1, 2]
    """
    return True


def warn_and_continue(error: Exception) -> bool:
    """Handler that warns, skips the element and continues. The warning names stage, shard and key.

    Example:
        >>> import warnings
        >>> from mpwds import DataPipeline
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     list(DataPipeline(["1", "one", "2"]).map(int, handler=warn_and_continue))
        [1, 2]
        >>> print(caught[0].message)  # doctest: +ELLIPSIS
        left out: ValueError("invalid literal for int() ...), in map(int, ...), on element 1
    """
    _warn("left out", error)
    return True


def ignore_and_stop(error: Exception) -> bool:
    """Handler that ends the stream at the element.

    Example:
        >>> from mpwds import DataPipeline
        >>> list(DataPipeline(["1", "one", "2"]).map(int, handler=ignore_and_stop))
        [1]
    """
    return False


def warn_and_stop(error: Exception) -> bool:
    """Handler that warns and ends the stream at the element.

    Example:
        >>> import warnings
        >>> from mpwds import DataPipeline
        >>> with warnings.catch_warnings(record=True):
        ...     list(DataPipeline(["1", "one", "2"]).map(int, handler=warn_and_stop))
        [1]
    """
    _warn("stopped", error)
    return False


def _warn(what: str, error: Exception) -> None:
    warn(", ".join([f"{what}: {error!r}", *notes_of(error)]), UserWarning)


def check_handler(stage: str, handler: object) -> None:
    """Raises ``TypeError`` if ``handler`` is not callable."""
    if not callable(handler):
        raise TypeError(
            f"{stage}: handler must be a function of the exception, such as warn_and_continue, "
            f"got {shown(handler)}"
        )
