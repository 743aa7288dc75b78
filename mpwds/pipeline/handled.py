"""The streams of stages that have an error handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.notes import explain
from mpwds.pipeline.randomness import Call, unseeded
from mpwds.pipeline.stream import Address, Derived, Stream


class Handled(Derived[Any]):
    """A derived stream that asks its stage's handler about each element that its function fails on.

    A handler with a method ``watch(stage, next)`` can count elements: it gets the stage's name and the
    function that returns the next element, and returns a function to call in its place.

    Args:
        source: Stream that gives the elements.
        stage: The stage; ``str(stage)`` names it in errors.
        handler: What to do about an exception.

    Attributes:
        on_skipped: Called with the exception of each element that a handler leaves out.
    """

    on_skipped: Callable[[Exception], object] | None = None

    def __init__(self, source: Stream[Any], stage: object, handler: Handler = reraise_exception) -> None:
        super().__init__(source)
        self._stage = stage
        self._handler = handler
        self._stopped = False
        self._next = self._watched()

    def _handle(self, error: Exception, address: Any, element: object) -> None:
        """Returns if the stream continues with the next element.

        Raises:
            StopIteration: The handler says to stop; the stream has ended.
            Exception: ``error`` with its notes, or what the handler raises.
        """
        try:
            self._explain(error, address, element)
            self._decide(error)
        finally:
            del error  # see ``reraise_exception``

    def _decide(self, error: Exception) -> None:
        try:
            if self._handler is reraise_exception or isinstance(error, ImportError):
                raise error  # a missing package makes no element bad
            self._ask(self._handler, error)
        finally:
            del error

    def _ask(self, handler: Handler, error: Exception) -> None:
        try:
            if not handler(error):
                self._stop()
                raise StopIteration
            if self.on_skipped is not None:
                self.on_skipped(error)
        finally:
            del error

    def _explain(self, error: Exception, address: Any, element: object) -> None:
        explain(error, self._stage, self._source, address, element)

    def _stop(self) -> None:
        self._stopped = True
        self._next = _ended

    def _watched(self) -> Callable[[], Any]:
        watch = getattr(self._handler, "watch", None)
        return self._source.__next__ if watch is None else watch(str(self._stage), self._source.__next__)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "stopped": self._stopped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if state["stopped"]:
            self._stop()
        else:
            self._stopped, self._next = False, self._watched()


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


def _ended() -> NoReturn:
    raise StopIteration
