"""The options of loaders, and checks of arguments."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, Literal, TypeVar, get_args

from mpwds.pipeline.error_context import check_boolean, check_choice
from mpwds.sharedmem.arena import MOST_BLOCKS

T = TypeVar("T")

Even = Literal["drop", "pad", "wrap"]
FinalOutput = Literal["torch", "numpy", "jax"]
OnWorkerDeath = Literal["raise", "restart"]
StartMethod = Literal["spawn", "fork", "forkserver"]

BLOCKS_OF_CONSUMER = 2
"""Blocks that a plain ``for`` loop holds: the batch in use, and the next one until its name is rebound."""

MOST_PREFETCH = MOST_BLOCKS - BLOCKS_OF_CONSUMER


@dataclass(frozen=True)
class LoaderOptions:
    """The options of a ``MultiLoader``, which documents them; ValueError if one is invalid."""

    workers: int
    in_order: bool
    prefetch: int
    start_method: str | None
    timeout: float | None
    output: FinalOutput
    seed: int | None
    persistent: bool
    on_worker_death: OnWorkerDeath
    even: Even | None
    pin_memory: bool
    device: Any
    progress: bool
    streams: int | None = None
    remote: str | Sequence[str] | Callable[[], Sequence[str]] | None = None
    keys: Any = None

    def __post_init__(self) -> None:
        name = "MultiLoader"
        checked = vars(self)  # a plain dict, although the dataclass is frozen
        checked["workers"] = integer(name, "workers", self.workers, at_least=0)
        checked["prefetch"] = integer(name, "prefetch", self.prefetch, at_least=1, at_most=MOST_PREFETCH)
        if self.start_method is not None:
            choice(name, "start_method", self.start_method, StartMethod)
        timeout(name, self.timeout)
        choice(name, "output", self.output, FinalOutput)
        choice(name, "on_worker_death", self.on_worker_death, OnWorkerDeath)
        if self.seed is not None:
            checked["seed"] = integer(name, "seed", self.seed)
        if self.streams is not None:
            checked["streams"] = integer(name, "streams", self.streams, at_least=1)
        if self.even is not None:
            choice(name, "even", self.even, Even)
        for switch in ("in_order", "persistent", "pin_memory", "progress"):
            checked[switch] = check_boolean(name, switch, checked[switch])


def options_of(kind: type[T], arguments: Mapping[str, Any]) -> T:
    """The options of a kind among the arguments of a function, which are its ``locals()``."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # a dataclass
    return kind(**{name: arguments[name] for name in names if name in arguments})


def integer(
    owner: str, name: str, value: Any, at_least: int | None = None, at_most: int | None = None
) -> int:
    """An argument of ``owner`` as an ``int``, also from a NumPy integer; ValueError for anything else."""
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


def choice(owner: str, name: str, value: Any, choices: Any) -> None:
    check_choice(owner, name, value, *get_args(choices))


def timeout(owner: str, value: Any) -> None:
    """Raises ValueError unless a time-out is a number above 0 or ``None``."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if value is not None and not (is_number and float(value) > 0):
        raise ValueError(f"{owner}: timeout must be above 0 seconds or None, got {value!r}")
