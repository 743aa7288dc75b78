"""The stream of every stage that makes one element from one element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpwds.pipeline.handled import Handled
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.randomness import Call, unseeded
from mpwds.pipeline.stream import Address, Stream


class Applied(Handled):
    """The stream of ``function(element)``, at the same addresses. ``None`` drops the element.

    Args:
        source: Stream that gives the elements.
        stage: The stage; ``str(stage)`` names it in errors.
        function: What to do to an element.
        call: How to call it: ``seeded(context)`` where it is a user's, which may draw random numbers.
        handler: What to do about an exception it raises.
    """

    def __init__(
        self,
        source: Stream[Any],
        stage: object,
        function: Callable[[Any], Any],
        call: Call = unseeded,
        handler: Handler = reraise_exception,
    ) -> None:
        super().__init__(source, stage, handler)
        self._function = function
        self._call = call

    def __next__(self) -> tuple[Address, Any]:
        while True:
            address, element = self._next()
            try:
                result = self._call(self._function, address, element)
            except Exception as error:
                self._handle(error, address, element)
            else:
                if result is not None:
                    return address, result

    def fetch(self, address: Any) -> Any:
        element = self._source.fetch(address)
        try:
            return self._call(self._function, address, element)
        except Exception as error:
            self._explain(error, address, element)
            raise
