"""The values that a loader's options may have, and checks of arguments."""

from __future__ import annotations

import operator
from numbers import Integral, Real
from typing import Any, Literal, get_args

import numpy as np

Even = Literal["drop", "pad", "wrap"]
FinalOutput = Literal["torch", "numpy", "jax"]
OnWorkerDeath = Literal["raise", "restart"]
StartMethod = Literal["spawn", "fork", "forkserver"]

BLOCKS_OF_CONSUMER = 2
"""Blocks that a plain ``for`` loop holds: the batch in use, and the next one until its name is bound anew."""


def integer(
    owner: str, name: str, value: Any, at_least: int | None = None, at_most: int | None = None
) -> int:
    """Returns an argument as an ``int``; accepts NumPy integers.

    ``owner`` is the class or function that takes the argument, for the message.

    Raises:
        ValueError: The value is not an integer, or out of range.
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
    """Returns an argument as a ``bool``; accepts NumPy booleans, 0 and 1.

    Raises:
        ValueError: The value is anything else, such as the string ``"no"``, which would count as true.
    """
    if not (isinstance(value, (Integral, np.bool_)) and value in (0, 1)):
        raise ValueError(f"{owner}: {name} must be True or False, got {value!r}")
    return bool(value)


def choice(owner: str, name: str, value: Any, choices: Any) -> Any:
    """Returns an argument that is one of the strings of ``choices``, a ``Literal``; else ValueError."""
    strings = get_args(choices)
    if not (isinstance(value, str) and value in strings):
        raise ValueError(f"{owner}: {name} must be one of {', '.join(map(repr, strings))}, got {value!r}")
    return value


def timeout(owner: str, value: Any) -> Any:
    """Returns a time-out that is a number above 0 or ``None``; else ValueError."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if value is not None and not (is_number and float(value) > 0):
        raise ValueError(f"{owner}: timeout must be above 0 seconds or None, got {value!r}")
    return value
