"""What stages can be added to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeVar

from mpwds.mistakes import Suggesting

Self = TypeVar("Self", bound="Composable")


class Composable(Suggesting, ABC):
    """Base of what has stages and makes copies of itself with more of them."""

    @abstractmethod
    def compose(self: Self, *stages: Any) -> Self:
        """A copy with more stages."""
