"""Outputs that a ``with`` block completes, unless it raises."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, TypeVar

T = TypeVar("T")


class _Output(Protocol):
    def close(self) -> None: ...

    def discard(self) -> None: ...


class ClosesOrDiscards:
    """Mixin: ``close``, which completes the output, ends a ``with`` block, or ``discard`` if it raises."""

    def __enter__(self: T) -> T:
        return self

    def __exit__(
        self: _Output,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()
