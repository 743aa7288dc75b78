"""Objects with a method ``close``: which ends a ``with`` block, and which is called for each of several."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")


class Closes:
    """Mixin: ``close`` ends a ``with`` block."""

    def __enter__(self: T) -> T:
        return self

    def __exit__(self: Any, *error: object) -> None:
        self.close()


def close_all(parts: Iterable[Any]) -> None:
    """Closes those of some objects that have a method ``close``."""
    for part in parts:
        if hasattr(part, "close"):
            part.close()
