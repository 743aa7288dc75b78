"""Error handlers: what a stage does about an element that it cannot process."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

Handler: TypeAlias = Callable[[Exception], Any]
"""Called with the exception, which carries notes for people and an ``incident`` for programs.

A true result leaves the element out and goes on, a false one ends the stage's stream; or it raises. These
are webdataset's rules. An ``ImportError`` is raised without asking: no element is bad because a package is
missing.
"""


def reraise_exception(error: Exception) -> NoReturn:
    """Handler that raises the error: the default everywhere.

    Example:
        >>> from mpwds.pipeline.stages.map import Map
        >>> from mpwds.pipeline.stream import collect
        >>> collect(Map(int, handler=reraise_exception), ["1", "one"])
        Traceback (most recent call last):
        ValueError: invalid literal for int() with base 10: 'one'
        in map(int), on element 1
    """
    try:
        raise error
    finally:
        # Its traceback holds this frame: with this name it would hold itself, and with it the pipeline, and
        # the workers of a loader, until the garbage collector comes by.
        del error


def ignore_and_continue(error: Exception) -> bool:
    """Handler that leaves the element out and goes on.

    Example:
        >>> from mpwds.pipeline.stages.map import Map
        >>> from mpwds.pipeline.stream import collect
        >>> collect(Map(int, handler=ignore_and_continue), ["1", "one", "2"])
        [1, 2]
    """
    return True


def warn_and_continue(error: Exception) -> bool:
    """Handler that leaves the element out, says so in a warning and goes on.

    The warning names stage, shard and key, so Python's filters show each bad sample once.

    Example:
        >>> from mpwds.pipeline.stages.map import Map
        >>> from mpwds.pipeline.stream import collect
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     collect(Map(int, handler=warn_and_continue), ["1", "one", "2"])
        [1, 2]
        >>> print(caught[0].message)  # doctest: +ELLIPSIS
        left out: ValueError("invalid literal for int() ...), in map(int, ...), on element 1
    """
    _warn("left out", error)
    return True


def ignore_and_stop(error: Exception) -> bool:
    """Handler that ends the stream at the element.

    Example:
        >>> from mpwds.pipeline.stages.map import Map
        >>> from mpwds.pipeline.stream import collect
        >>> collect(Map(int, handler=ignore_and_stop), ["1", "one", "2"])
        [1]
    """
    return False


def warn_and_stop(error: Exception) -> bool:
    """Handler that ends the stream at the element and says so in a warning.

    Example:
        >>> from mpwds.pipeline.stages.map import Map
        >>> from mpwds.pipeline.stream import collect
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     collect(Map(int, handler=warn_and_stop), ["1", "one", "2"])
        [1]
        >>> print(caught[0].message)  # doctest: +ELLIPSIS
        stopped: ValueError("invalid literal for int() ...), in map(int, ...), on element 1
    """
    _warn("stopped", error)
    return False


def _warn(what: str, error: Exception) -> None:
    notes = getattr(error, "__notes__", [])
    warnings.warn(", ".join([f"{what}: {error!r}", *notes]), stacklevel=3)


def check_handler(stage: str, handler: object) -> None:
    """Refuses what cannot be called.

    Raises:
        TypeError: ``handler`` cannot be called.

    Example:
        >>> check_handler("map", "warn")
        Traceback (most recent call last):
        TypeError: map: handler must be a function of the exception, such as warn_and_continue, got 'warn'
    """
    if not callable(handler):
        raise TypeError(
            f"{stage}: handler must be a function of the exception, such as warn_and_continue, "
            f"got {handler!r}"
        )
