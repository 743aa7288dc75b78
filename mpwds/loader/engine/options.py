"""The options of loaders, and checks of arguments."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, get_args

import numpy as np

from mpwds.sharedmem.arena import MOST_BLOCKS

Even = Literal["drop", "pad", "wrap"]
FinalOutput = Literal["torch", "numpy", "jax"]
OnWorkerDeath = Literal["raise", "restart"]
StartMethod = Literal["spawn", "fork", "forkserver"]

BLOCKS_OF_CONSUMER = 2
"""Blocks that a plain ``for`` loop holds: the batch in use, and the next one until its name is bound anew."""


@dataclass(frozen=True)
class LoaderOptions:
    """The options of a ``MultiLoader``, which documents them.

    Raises:
        ValueError: One is invalid.
    """

    workers: int
    in_order: bool
    prefetch: int
    start_method: StartMethod
    timeout: float | None
    output: FinalOutput
    seed: int | None
    persistent: bool
    on_worker_death: OnWorkerDeath
    even: Even | None
    pin_memory: bool
    device: Any
    progress: bool

    def __post_init__(self) -> None:
        owner, checked = "MultiLoader", vars(self)  # of a frozen dataclass, too, it is a plain dict
        checked["workers"] = integer(owner, "workers", self.workers, at_least=0)
        most = MOST_BLOCKS - BLOCKS_OF_CONSUMER
        checked["prefetch"] = integer(owner, "prefetch", self.prefetch, at_least=1, at_most=most)
        choice(owner, "start_method", self.start_method, get_args(StartMethod))
        choice(owner, "output", self.output, get_args(FinalOutput))
        choice(owner, "on_worker_death", self.on_worker_death, get_args(OnWorkerDeath))
        if self.even is not None:
            choice(owner, "even", self.even, get_args(Even))
        timeout(owner, self.timeout)
        if self.seed is not None:
            checked["seed"] = integer(owner, "seed", self.seed)
        for name in ("in_order", "persistent", "pin_memory", "progress"):
            checked[name] = boolean(owner, name, checked[name])


def integer(
    owner: str, name: str, value: Any, at_least: int | None = None, at_most: int | None = None
) -> int:
    """Returns an argument as an ``int``; accepts NumPy integers.

    Args:
        owner: The class or function that takes the argument, for the message.
        name: The argument's name.
        value: Its value.
        at_least: The smallest value allowed.
        at_most: The largest value allowed.

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


def choice(owner: str, name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raises ``ValueError`` unless an argument is one of ``choices``."""
    if not (isinstance(value, str) and value in choices):
        raise ValueError(f"{owner}: {name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def timeout(owner: str, value: Any) -> None:
    """Raises ``ValueError`` unless a time-out is a number above 0 or ``None``."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if value is not None and not (is_number and float(value) > 0):
        raise ValueError(f"{owner}: timeout must be above 0 seconds or None, got {value!r}")
