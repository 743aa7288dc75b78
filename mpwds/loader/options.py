"""Checks of the arguments of loaders."""

from __future__ import annotations

import operator
from numbers import Integral, Real
from typing import Any

import numpy as np


def integer(
    owner: str, name: str, value: Any, at_least: int | None = None, at_most: int | None = None
) -> int:
    """Returns an argument as an ``int``; NumPy integers are accepted.

    Args:
        owner: The class or function that takes the argument, for the message.
        name: The argument's name.
        value: Its value.
        at_least: The smallest value allowed.
        at_most: The largest value allowed.

    Raises:
        ValueError: The value is not an integer, or out of range.

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


def boolean(owner: str, name: str, value: Any) -> bool:
    """Returns an argument as a ``bool``; NumPy booleans, 0 and 1 are accepted.

    Raises:
        ValueError: The value is anything else, such as the string ``"no"``, which would count as true.

    Example:
        >>> boolean("MultiLoader", "in_order", "no")
        Traceback (most recent call last):
        ...
        ValueError: MultiLoader: in_order must be True or False, got 'no'
    """
    if not (isinstance(value, (Integral, np.bool_)) and value in (0, 1)):
        raise ValueError(f"{owner}: {name} must be True or False, got {value!r}")
    return bool(value)


def choice(owner: str, name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Checks that an argument is one of ``choices``.

    Raises:
        ValueError: It is not.
    """
    if not (isinstance(value, str) and value in choices):
        raise ValueError(f"{owner}: {name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def timeout(owner: str, value: Any) -> None:
    """Checks a time-out.

    Raises:
        ValueError: The value is neither a number above 0 nor ``None``.
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if value is not None and not (is_number and float(value) > 0):
        raise ValueError(f"{owner}: timeout must be above 0 seconds or None, got {value!r}")
