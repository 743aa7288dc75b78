"""Checks of arguments (webdataset 0.1). Each raises ``ValueError`` with ``msg`` in its text if it fails."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from mpwds.mistakes import shown


def check(value: object, msg: str = "") -> None:
    """Checks that ``value`` is true.

    Example:
        >>> check(0, "shards")
        Traceback (most recent call last):
        ValueError: shards: expected a true value, got 0
    """
    _require(bool(value), msg, "a true value", value)


def checktype(value: object, types: type | tuple[type, ...], msg: str = "") -> None:
    """Checks that ``value`` is an instance of ``types``."""
    _require(isinstance(value, types), msg, f"an instance of {types}", value)


def checkmember(value: object, values: Container[Any], msg: str = "") -> None:
    """Checks that ``value`` is in ``values``."""
    _require(value in values, msg, f"one of {values}", value)


def checkrange(value: Any, lo: Any, hi: Any, msg: str = "") -> None:
    """Checks that ``lo <= value <= hi``."""
    _require(lo <= value <= hi, msg, f"a value from {lo} to {hi}", value)


def checkcallable(value: object, msg: str = "") -> None:
    """Checks that ``value`` can be called."""
    _require(callable(value), msg, "a function", value)


def checknotnone(value: object, msg: str = "") -> None:
    """Checks that ``value`` is not ``None``."""
    _require(value is not None, msg, "a value other than None", value)


def _require(holds: bool, msg: str, expected: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{msg or 'check'}: expected {expected}, got {shown(value)}")
