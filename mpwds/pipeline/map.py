"""Apply a function to every element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.applied import Applied
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.notes import arguments
from mpwds.pipeline.randomness import seeded
from mpwds.pipeline.stream import Address, Stream


@dataclass(frozen=True)
class Map:
    """Stage that yields ``function(element)`` for each element of its source.

    Args:
        function: Takes an element and returns another. ``None`` drops the element. A dict that is made
            from a dict sample and has no ``__key__`` gets that of the sample. Random numbers it draws
            are the same each time it sees this element in this epoch.

    Raises:
        TypeError: ``function`` cannot be called.

    Example:
        >>> from mpwds.pipeline.stream import collect
        >>> collect(Map(lambda n: n * n if n else None), range(4))
        [1, 4, 9]
    """

    function: Callable[[Any], Any]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"map: expected a function, got {self.function!r}")

    def __str__(self) -> str:
        return f"map({arguments(self.function)})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Mapped(source, self, self.function, seeded(context))


class _Mapped(Applied):
    def __next__(self) -> tuple[Address, Any]:
        while True:
            address, element = self._next()
            result = self._make(address, element)
            if result is not None:
                return address, result

    def _make(self, address: Any, element: Any) -> Any:
        # Looked up before the call: the function may take the sample apart.
        key = element.get("__key__") if isinstance(element, dict) else None
        result = super()._make(address, element)
        if key is not None and isinstance(result, dict) and "__key__" not in result:
            return {"__key__": key, **result}
        return result
