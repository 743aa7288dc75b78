"""Objects whose ``close`` ends a ``with`` block."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


class Closes:
    """Mixin: ``close`` ends a ``with`` block."""

    def __enter__(self: T) -> T:
        return self

    def __exit__(self: Any, *error: object) -> None:
        self.close()
