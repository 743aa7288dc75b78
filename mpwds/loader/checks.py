"""Checks of the arguments that loaders take."""

from __future__ import annotations

import operator
from numbers import Real
from typing import Any


def integer(
    owner: str, name: str, value: Any, at_least: int | None = None, at_most: int | None = None
) -> int:
    """The argument as an ``int``; NumPy's integers are taken too.

    Args:
        owner: Whose argument it is.
        name: Its name.
        value: The argument.
        at_least: The smallest that it may be.
        at_most: The largest.

    Raises:
        ValueError: It is no integer, or out of range.

    Example:
        >>> integer("MultiLoader", "workers", True)
        Traceback (most recent call last):
        ...
        ValueError: MultiLoader: workers must be an integer, got True
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise ValueError(f"{owner}: {name} must be an integer, got {value!r}")
    if at_least is not None and number < at_least:
        raise ValueError(f"{owner}: {name} must be at least {at_least}, got {number}")
    if at_most is not None and number > at_most:
        raise ValueError(f"{owner}: {name} must be at most {at_most}, got {number}")
    return number


def choice(owner: str, name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Checks that an argument is one of some words.

    Raises:
        ValueError: It is none of them.
    """
    if not (isinstance(value, str) and value in choices):
        raise ValueError(f"{owner}: {name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def timeout(owner: str, value: Any) -> None:
    """Checks a time-out.

    Raises:
        ValueError: It is no number above 0, nor ``None``.
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if value is not None and not (is_number and float(value) > 0):
        raise ValueError(f"{owner}: timeout must be above 0 seconds or None, got {value!r}")
