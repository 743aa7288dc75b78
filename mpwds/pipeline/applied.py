"""The stream of every stage that makes one element from one element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpwds.pipeline.notes import explain
from mpwds.pipeline.randomness import Call, unseeded
from mpwds.pipeline.stream import Address, Derived, Stream


class Applied(Derived[Any]):
    """The stream of ``function(element)``, at the same addresses.

    Args:
        source: Stream that gives the elements.
        stage: The stage; ``str(stage)`` names it in errors.
        function: What to do to an element.
        call: How to call it: ``seeded(context)`` where it is a user's, which may draw random numbers.
    """

    def __init__(
        self, source: Stream[Any], stage: object, function: Callable[[Any], Any], call: Call = unseeded
    ) -> None:
        super().__init__(source)
        self._stage = stage
        self._function = function
        self._call = call

    def __next__(self) -> tuple[Address, Any]:
        address, element = self._next()
        return address, self._make(address, element)

    def fetch(self, address: Any) -> Any:
        return self._make(address, self._source.fetch(address))

    def _make(self, address: Any, element: Any) -> Any:
        try:
            return self._call(self._function, address, element)
        except Exception as error:
            explain(error, self._stage, self._source, address)
            raise
